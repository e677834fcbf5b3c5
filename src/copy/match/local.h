/* Checks of a batch that one rank can make alone, and formatting of ids in messages. */
#ifndef COPY_MATCH_LOCAL_H
#define COPY_MATCH_LOCAL_H

#include "copy/strided/strided.h"

#define TASK_NAMES_MAX 10

/* View one side of an operation, with the format of its elements where they are cast. */
banyan_status copy_op_view(const banyan_copy_op *op, bool is_send, strided_view *view);

/* True if elements of one can become elements of the other. */
bool copy_views_fit(const strided_view *a, const strided_view *b);

/* The first ten ids of a list, for a message: "3, 7/1 (part 1 of task 7), …". */
typedef struct task_names {
    char text[1024];
    size_t used;
    size_t count; /* of all that were added */
} task_names;

void task_names_add(task_names *names, uint64_t task_id, uint32_t part);
/* Add text in parentheses about the id that was added last. */
void task_names_explain(task_names *names, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Return the list, followed by "and N more" if it has more than ten ids. */
const char *task_names_text(task_names *names);

/* A task's position in the order that both of its ends agree on. */
typedef struct task_key {
    int peer;
    uint64_t task_id;
    uint32_t part;
    size_t op; /* index into the source operations */
} task_key;

/* Compare by peer, then (task id, part); tasks without an id come last, in order of submission. 0
 * only for two equal ids. */
int task_key_compare(const task_key *a, const task_key *b);

/* Return sorted keys of the operations whose peer is `only` (-1: any but `except`). `keys` has
 * space for all. */
size_t task_keys_sort(const banyan_copy_op *ops, size_t count, int only, int except,
                      task_key *keys);

/* Check that no id appears twice for one peer and direction and, without `by_order`, that none is
 * missing. MISMATCH names `who`, the rank, the peer and up to ten ids. */
banyan_status copy_check_ids(const char *who, int rank, const banyan_copy_op *ops, size_t count,
                             bool is_send, bool by_order);

#endif
