/* The directory's steps, apart from how messages travel, so that a world of thousands of ranks can
 * be played through in one process with the very code that a real one runs. */
#ifndef WORLD_DIRECTORY_DIRECTORY_H
#define WORLD_DIRECTORY_DIRECTORY_H

#include "world/control.h"

typedef struct directory_part directory_part; /* one rank's share: what it puts, owns and asks */

banyan_status directory_part_create(int rank, int world_size, directory_part **part);
void directory_part_destroy(directory_part *part);

/* The rank that holds what lies under the key. */
int directory_owner(const char *key, int world_size);

banyan_status directory_part_put(directory_part *part, const char *key, const void *value,
                                 size_t bytes, const banyan_rank_set *holders);
/* What was put since the last call: one message an owner, to be freed with control_messages_free.
 */
banyan_status directory_part_take_puts(directory_part *part, control_message **messages,
                                       size_t *count);
/* At the owner: take in a message of puts. A malformed one is FORMAT and changes nothing. */
banyan_status directory_part_absorb(directory_part *part, int from, const void *data, size_t bytes);

/* Questions for `count` keys: one message an owner. */
banyan_status directory_part_ask(directory_part *part, size_t count, const char *const *keys,
                                 control_message **messages, size_t *message_count);
/* At the owner: the answer to one message of questions, to be freed. */
banyan_status directory_part_answer(directory_part *part, const void *question, size_t bytes,
                                    void **answer, size_t *answer_bytes);
/* Back at the asker: visit every key of the last ask, given all owners' answers. */
banyan_status directory_part_visit(directory_part *part, const control_message *answers,
                                   size_t answer_count, banyan_directory_visit visit,
                                   void *context);

/* Bytes of memory that the part holds. */
size_t directory_part_memory(const directory_part *part);

#endif
