/* Sets of ranks as the directory keeps and sends them. */
#ifndef WORLD_DIRECTORY_RANKS_H
#define WORLD_DIRECTORY_RANKS_H

#include "core/containers/arena.h"
#include "core/containers/bytes.h"

/* Levels of one element dropped, the others moved to the fast end: equal descriptions of a set are
 * then equal bytes. */
banyan_rank_set ranks_pack(const banyan_rank_set *set);

/* NULL when the set is packed, not empty, inside the world and names no rank twice; else why it is
 * not. `seen` is scratch of ranks_words(world_size) zeroed words, and is left zeroed. */
const char *ranks_problem(const banyan_rank_set *set, int world_size, uint64_t *seen);
size_t ranks_words(int world_size);

void ranks_write(bytes_writer *writer, const banyan_rank_set *packed);
/* Checked for what a reader can see alone: levels. ranks_problem checks the rest. */
banyan_rank_set ranks_read(bytes_reader *reader);

/* A union of sets in few sets: disjoint, ascending by first rank. */
typedef struct rank_list {
    banyan_rank_set *sets; /* packed */
    uint32_t count, capacity;
    bool folded; /* disjoint and few; what is added later waits for the next fold */
} rank_list;

/* Add a packed set without problems. Memory comes from the arena. False when it ran out. */
bool rank_list_add(rank_list *list, const banyan_rank_set *packed, int world_size, uint64_t *seen,
                   arena *memory);
/* Make it disjoint and ascending. Ranks that follow a pattern of up to four strides, nested, become
 * one set. */
bool rank_list_fold(rank_list *list, int world_size, uint64_t *seen, arena *memory);

#endif
