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
 * `note`, a bytes_writer of core/containers/bytes.h. NULL: no notes. */
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

#endif
