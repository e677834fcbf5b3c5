/* Parts of the reader: JSON to plan, checked for types and for what does not fit into the plan's
 * own; what the numbers mean is checked afterwards, by plan_check_indices. */
#ifndef PLAN_JSON_READ_H
#define PLAN_JSON_READ_H

#include "core/text/json.h"
#include "plan/plan.h"

typedef struct plan_reader {
    banyan_plan *plan;
    int rank; /* whose entry is read */
    json_path path;
} plan_reader;

/* Optional members: what is missing or null leaves the value as it is. */
banyan_status read_u64_maybe(plan_reader *reader, const json_t *object, const char *key,
                             uint64_t low, uint64_t high, uint64_t *value);
banyan_status read_bool_maybe(plan_reader *reader, const json_t *object, const char *key,
                              bool *value);
/* NULL when it is missing. */
banyan_status read_array_maybe(plan_reader *reader, const json_t *object, const char *key,
                               json_t **array);

/* Append a list of numbers up to `high` to `count` that are there; the room for them was counted.
 */
banyan_status read_numbers(plan_reader *reader, const json_t *object, const char *key,
                           uint32_t high, uint32_t *numbers, uint32_t *count);
/* How many entries a list has. */
banyan_status read_count(plan_reader *reader, const json_t *array, uint32_t *count);

banyan_status read_channel_type(plan_reader *reader, const json_t *object, const char *key,
                                plan_channel_type *type);
banyan_status read_buffer(plan_reader *reader, const json_t *object, const char *key,
                          plan_buffer *buffer);

/* The operations of a thread block; `path` leads to the list. */
banyan_status read_ops(plan_reader *reader, const json_t *array, bool in_loop, plan_op **ops,
                       uint32_t *count);
/* One entry of "gpus". */
/* A name or tag, into the plan; FORMAT when it has control characters. */
banyan_status read_text(plan_reader *reader, const char *what, const char *text,
                        const char **taken);

banyan_status read_rank(plan_reader *reader, const json_t *object, plan_rank *rank);
/* What is under the key "banyan". */
banyan_status read_extras(plan_reader *reader, const json_t *root);

#endif
