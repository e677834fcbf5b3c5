/* One rank's part of a schedule of the direct backend, partner by partner. */
#ifndef COPY_DIRECT_PLAN_H
#define COPY_DIRECT_PLAN_H

#include "copy/direct/gather.h"
#include "copy/direct/moves.h"
#include "copy/direct/pages.h"
#include "copy/match/match.h"
#include "memory/symmetric/attach.h"

/* Everything that goes one way between this rank and a partner. Where both sides are symmetric
 * memory either end can move it, and they share: `shared` is the same list at both. Where one side
 * is, the end that holds the ordinary memory moves it (`own`, at that end only). Where neither is,
 * the receiver reads through the transport.
 *
 * On devices the sender moves all of it: stores to a peer are faster than loads from one. Then
 * `own` of an outgoing lane is a list of whole moves, without chunks. */
typedef struct direct_lane {
    direct_moves shared;
    direct_moves own;
    ARRAY(direct_gather) reads;
    arena read_memory;
    uint64_t bytes; /* of the tasks */
} direct_lane;

typedef struct direct_partner {
    int peer;
    direct_lane in, out;
} direct_partner;

typedef struct direct_plan {
    direct_places places;
    direct_partner *partners; /* by rank, starting with the one after this rank */
    size_t partner_count;
    direct_moves local;
    direct_pages pages; /* used while the plan is made */
    uint64_t bytes;     /* that this rank may have to move itself */
    DLDevice device;
    memory_attachments *attached; /* registered destinations at peers' devices */
    ARRAY(memory_wanted)
    wanted;        /* the same, in the order of the matches; used while the plan is made */
    size_t mapped; /* number of those mapped so far */
} direct_plan;

/* Collective; fails on all ranks or on none. */
banyan_status direct_plan_create(banyan_world *world, banyan_transport *transport,
                                 const banyan_copy_batch *batch, direct_plan **plan);
banyan_status direct_plan_create_on_device(banyan_world *world, DLDevice device,
                                           const banyan_copy_batch *batch, direct_plan **plan);
void direct_plan_destroy(direct_plan *plan);

#endif
