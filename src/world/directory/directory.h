/* The steps of the directory, without the transport of messages. A test can therefore run a world
 * of thousands of ranks in one process with the code of a real one. */
#ifndef WORLD_DIRECTORY_DIRECTORY_H
#define WORLD_DIRECTORY_DIRECTORY_H

#include "world/control.h"

/* one rank's share: its puts, its keys and its questions */
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

#endif
