/* Sets of ranks, as the directory stores and sends them. */
#ifndef WORLD_DIRECTORY_RANKS_H
#define WORLD_DIRECTORY_RANKS_H

#include "core/containers.h"

/* Drop levels of one element and move the others to the fast end, so that equal descriptions of a
 * set are equal bytes. */
banyan_rank_set ranks_pack(const banyan_rank_set *set);

/* Return NULL if the set is packed, not empty, inside the world, and names no rank twice; otherwise
 * the reason. `seen` is scratch of ranks_words(world_size) zeroed words, and is zero again
 * afterwards. */
const char *ranks_problem(const banyan_rank_set *set, int world_size, uint64_t *seen);
size_t ranks_words(int world_size);

void ranks_write(bytes_writer *writer, const banyan_rank_set *packed);
/* Read a set and check its levels. ranks_problem checks the rest. */
banyan_rank_set ranks_read(bytes_reader *reader);

/* A union of sets as a small number of sets: disjoint, ascending by first rank. */
typedef struct rank_list {
    banyan_rank_set *sets; /* packed */
    uint32_t count, capacity;
    bool folded; /* disjoint and few; later additions wait for the next fold */
} rank_list;

/* Add a valid packed set. Memory comes from the arena. False when out of memory. */
bool rank_list_add(rank_list *list, const banyan_rank_set *packed, int world_size, uint64_t *seen,
                   arena *memory);
/* Make the list disjoint and ascending. Ranks that follow a nested pattern of up to four strides
 * become one set. */
bool rank_list_fold(rank_list *list, int world_size, uint64_t *seen, arena *memory);

#endif
