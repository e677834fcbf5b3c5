/* One rank's part of a schedule of the direct backend, partner by partner. */
#ifndef COPY_DIRECT_PLAN_H
#define COPY_DIRECT_PLAN_H

#include "copy/direct/moves.h"
#include "copy/direct/place.h"
#include "copy/direct/remote.h"
#include "copy/match/match.h"
#include "copy/service/backends.h"
#include "copy/strided/loops.h"
#include "copy/strided/strided.h"
#include "core/containers.h"
#include "memory/symmetric/symmetric.h"

typedef struct direct_page_range {
    uintptr_t low, high; /* whole pages */
} direct_page_range;

/* A zeroed set is empty. */
typedef struct direct_pages {
    ARRAY(direct_page_range) read, written;
} direct_pages;

/* Add the pages that the view's elements span. */
banyan_status direct_pages_add(direct_pages *all, const strided_view *view, bool written);

/* Map the pages, with one call between gaps, and clear the set. */
void direct_pages_prefault(direct_pages *all);

void direct_pages_free(direct_pages *all);

/* Pieces of a read: `rows` iterations of dimension `row_dim` and all below it. */
typedef struct direct_pieces {
    strided_view to;
    strided_view from; /* data is not used */
    int row_dim;
    uint64_t rows;
} direct_pieces;

/* One task. Long rows are read straight to their destination. Short rows are read with the gaps
 * between them, a piece of the tensor at a time, into a buffer that stays in the cache, and copied
 * from there. */
typedef struct direct_gather {
    banyan_memory_handle handle;
    int64_t offset;              /* of the first row, or of element 0, within the handle's memory */
    strided_move rows;           /* `offset` replaces rows.from, which is not used */
    const direct_pieces *pieces; /* NULL: straight */
} direct_gather;

/* Plan the read of a peer's tensor into `to`. The plan's arrays are allocated from `memory`. */
banyan_status direct_gather_plan(const direct_place *from, const strided_view *to, arena *memory,
                                 direct_gather *gather);

uint64_t direct_gather_bytes(const direct_gather *gather);

/* State shared by the reads of many tasks: few calls of the transport, and one buffer. */
typedef struct direct_reader direct_reader;

banyan_status direct_reader_create(banyan_transport *transport, direct_reader **reader);
void direct_reader_destroy(direct_reader *reader);

/* Read one task; it may not be complete until direct_reader_finish. */
banyan_status direct_reader_read(direct_reader *reader, const direct_gather *gather);
banyan_status direct_reader_finish(direct_reader *reader);
/* Drop reads that are not done, after a failure. */
void direct_reader_reset(direct_reader *reader);

/* Everything that goes one way between this rank and a partner. Where both sides are symmetric
 * memory either end can move it, and they share: `shared` is the same list at both. Where one side
 * is, the end that holds the ordinary memory moves it (`own`, at that end only). Where neither is,
 * the receiver reads through the transport.
 *
 * On devices the sender moves all of it: stores to a peer are faster than loads from one. Then
 * `own` of an outgoing flow is a list of whole moves, without chunks. */
typedef struct direct_flow {
    direct_moves shared;
    direct_moves own;
    ARRAY(direct_gather) reads;
    arena read_memory;
    uint64_t bytes; /* of the tasks */
} direct_flow;

typedef struct direct_partner {
    int peer;
    bool is_remote; /* its memory is not mapped here: only the remote flows are used */
    direct_flow in, out;
    remote_flow remote_in, remote_out;
} direct_partner;

typedef struct direct_plan {
    direct_places places;
    direct_partner *partners; /* by rank, starting with the one after this rank */
    size_t partner_count;
    direct_moves local;
    direct_pages pages; /* used while the plan is made */
    uint64_t bytes;     /* that this rank may have to move itself */
    bool has_remote;    /* some rank of the world has peers whose memory it does not map */
    DLDevice device;
    memory_attachments *attached; /* registered destinations at peers' devices */
    ARRAY(memory_wanted)
    wanted;        /* the same, in the order of the matches; used while the plan is made */
    size_t mapped; /* number of those mapped so far */
} direct_plan;

/* Return the local rank of a rank on this node. */
int direct_local_rank(const banyan_world *world, int rank);

/* Collective; fails on all ranks or on none. `has_remote` is that of the plan, equal on all ranks.
 */
banyan_status direct_plan_create(banyan_world *world, banyan_transport *transport, bool has_remote,
                                 const banyan_copy_batch *batch, direct_plan **plan);
banyan_status direct_plan_create_on_device(banyan_world *world, DLDevice device,
                                           const banyan_copy_batch *batch, direct_plan **plan);
/* End the registrations of this rank's memory: the plan cannot run again. */
void direct_plan_withdraw(direct_plan *plan);
void direct_plan_destroy(direct_plan *plan);

#endif
