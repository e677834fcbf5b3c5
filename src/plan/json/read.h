/* Parts of the reader: JSON to plan, with checks of types and of ranges of the plan's fields.
 * plan_check_indices checks the meaning of the numbers afterwards. */
#ifndef PLAN_JSON_READ_H
#define PLAN_JSON_READ_H

#include "core/text/json.h"
#include "plan/plan.h"

typedef struct plan_reader {
    banyan_plan *plan;
    int rank; /* the rank whose entry is being read */
    json_path path;
} plan_reader;

/* Read optional members: a missing or null member leaves the value unchanged. */
banyan_status read_u64_maybe(plan_reader *reader, const json_t *object, const char *key,
                             uint64_t low, uint64_t high, uint64_t *value);
banyan_status read_bool_maybe(plan_reader *reader, const json_t *object, const char *key,
                              bool *value);
/* Append a list of numbers up to `high` to `count` existing ones; the caller has reserved the
 * space. */
banyan_status read_numbers(plan_reader *reader, const json_t *object, const char *key,
                           uint32_t high, uint32_t *numbers, uint32_t *count);
/* Get the number of entries of a list. */
banyan_status read_count(plan_reader *reader, const json_t *array, uint32_t *count);

banyan_status read_channel_type(plan_reader *reader, const json_t *object, const char *key,
                                plan_channel_type *type);
banyan_status read_buffer(plan_reader *reader, const json_t *object, const char *key,
                          plan_buffer *buffer);

/* Read the operations of a thread block, or of a loop. */
banyan_status read_ops(plan_reader *reader, const json_t *object, bool in_loop, plan_op **ops,
                       uint32_t *count);
/* Copy a name or tag into the plan; FORMAT when it has control characters. */
banyan_status read_text(plan_reader *reader, const char *what, const char *text,
                        const char **taken);

/* Read one entry of "gpus". */
banyan_status read_rank(plan_reader *reader, const json_t *object, plan_rank *rank);

#endif
