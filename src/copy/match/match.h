/* Check that the two sides of every task agree, as backends with schedules do before anything
 * moves. */
#ifndef COPY_MATCH_MATCH_H
#define COPY_MATCH_MATCH_H

#include "copy/strided/strided.h"

/* One remote task, as both ends know it after matching. Both ends list their common tasks in equal
 * order: by (task id, part), and tasks without an id by submission. */
typedef struct copy_match {
    size_t op; /* index into this rank's sends or recvs */
    int peer;
    uint64_t bytes;        /* of the whole tensor */
    size_t elem_bytes;     /* at the peer; differs where elements are cast */
    strided_format format; /* at the peer */
    const void *note;      /* the peer's note about its side (see below); NULL without notes */
    size_t note_bytes;
} copy_match;

typedef struct copy_matches {
    copy_match *sends; /* sorted by peer, then the common order */
    size_t send_count;
    copy_match *recvs;
    size_t recv_count;
    void *storage; /* holds the notes */
} copy_matches;

/* Write one side's note to the other about one operation, such as an address or strides, into
 * `note`, a bytes_writer of core/containers.h. NULL: no notes. */
struct bytes_writer;
typedef banyan_status (*copy_note_fn)(void *context, const banyan_copy_op *op, bool is_send,
                                      struct bytes_writer *note);

/* Compare ids, sizes and element sizes with every partner, and agree over the world. On any error
 * every rank gets one, its own where it has one, that names `who`, rank, partner and up to ten ids.
 * Moves within a rank are skipped. Collective. */
banyan_status copy_match_batch(banyan_world *world, const char *who, const banyan_copy_batch *batch,
                               copy_note_fn note_fn, void *note_context, copy_matches *matches);
void copy_matches_free(copy_matches *matches);

/* Agree as control_agree, but a rank that failed itself keeps its own status and message.
 * Collective. */
banyan_status copy_agree(banyan_world *world, banyan_status mine);

/* Agree; `*kept` is an object that every rank has made. If only some ranks have made theirs, they
 * are released (`made` may be NULL where `mine` is an error). Collective. */
banyan_status copy_keep_on_all(banyan_world *world, banyan_status mine, void *made,
                               void (*release)(void *context, void *made), void *context,
                               void **kept);

/* Allocate zeroed memory, for free(), on every rank or on none; `what` names its use in errors.
 * Collective. */
banyan_status copy_alloc_on_all(banyan_world *world, size_t bytes, const char *what, void **memory);

/* Checks of a batch that one rank can make alone, and formatting of ids in messages. */

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
