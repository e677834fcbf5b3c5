/* The steps of the directory, without the transport of messages. A test can therefore run a world
 * of thousands of ranks in one process with the code of a real one. */
#ifndef WORLD_DIRECTORY_DIRECTORY_H
#define WORLD_DIRECTORY_DIRECTORY_H

#include "core/containers.h"
#include "world/control.h"

/* The directory's data at one rank: its puts, its keys and its questions. */
typedef struct directory_part directory_part;

banyan_status directory_part_create(int rank, int world_size, directory_part **part);
void directory_part_destroy(directory_part *part);

/* Return the rank that stores the key. */
int directory_owner(const char *key, int world_size);

banyan_status directory_part_put(directory_part *part, const char *key, const void *value,
                                 size_t bytes, const banyan_rank_set *holders);
/* Take all puts since the last call: one message per owner. Free them with control_messages_free.
 */
banyan_status directory_part_take_puts(directory_part *part, control_message **messages,
                                       size_t *count);
/* At the owner: take in a message of puts. FORMAT, with no change, if it is malformed. */
banyan_status directory_part_absorb(directory_part *part, int from, const void *data, size_t bytes);

/* Take the questions for `count` keys: one message per owner. */
banyan_status directory_part_ask(directory_part *part, size_t count, const char *const *keys,
                                 control_message **messages, size_t *message_count);
/* At the owner: answer one message of questions. Free the answer. */
banyan_status directory_part_answer(directory_part *part, const void *question, size_t bytes,
                                    void **answer, size_t *answer_bytes);
/* At the asker: visit every key of the last ask, given all owners' answers. */
banyan_status directory_part_visit(directory_part *part, const control_message *answers,
                                   size_t answer_count, banyan_directory_visit visit,
                                   void *context);

/* Return the bytes of memory that the part holds. */
size_t directory_part_memory(const directory_part *part);

/* Sets of ranks, as the directory stores and sends them.
 *
 * Drop levels of one element and move the others to the fast end, so that equal descriptions of a
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
