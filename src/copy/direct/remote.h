/* Data that crosses between ranks whose memory is not mapped here: the sender puts it through the
 * transport.
 *
 * A task goes one of three ways, which both ends derive from the two views.
 * - Straight. The sender puts long runs of contiguous bytes one by one, from source to destination.
 * - Gathered. The destination is dense but the source is not. The sender packs part after part into
 *   a send slot, and puts each to its place.
 * - Packed. The sender fills a send slot with parts of many tasks and puts it into a slot of the
 *   receiver, which unpacks it.
 *
 * Three signals for each pair of ranks: the receiver signals that it has entered a run, and for
 * each slot that the sender needs again (`ready`). The sender signals each slot's contents
 * (`arrived`), and how far its straight puts have come (`put`). */
#ifndef COPY_DIRECT_REMOTE_H
#define COPY_DIRECT_REMOTE_H

#include "copy/direct/place.h"
#include "copy/service/progress.h"
#include "copy/strided/loops.h"
#include "copy/strided/strided.h"
#include "core/containers.h"
#include "world/control.h"

#define REMOTE_SLOTS 4

/* A task that goes straight. */
typedef struct remote_straight {
    banyan_remote to;  /* of the first run */
    strided_move runs; /* `to` replaces runs.to, which is not used */
} remote_straight;

/* Consecutive elements of this end's view of a task, in a slot. */
typedef struct remote_piece {
    size_t view; /* index into the flow's views */
    uint64_t first, count, slot_offset;
} remote_piece;

/* Contents of a send slot. The receiver has no pieces of a gathered batch: it is in its place. */
typedef struct remote_batch {
    size_t first_piece, piece_count;
    uint64_t bytes;
    banyan_remote to; /* at the sender */
} remote_batch;

/* A task that is gathered or packed, until the batches are made. */
typedef struct remote_parted {
    size_t view;
    bool is_gathered;
    banyan_remote to; /* of a gathered task, at the sender */
} remote_parted;

/* Everything that goes one way between this rank and a partner. */
typedef struct remote_flow {
    ARRAY(remote_straight) straight; /* at the sender */
    ARRAY(strided_view) views;
    ARRAY(remote_parted) parted; /* used while the plan is made */
    ARRAY(remote_batch) batches;
    ARRAY(remote_piece) pieces;
    arena loops;
    uint64_t straight_bytes, bytes; /* of both ends' lists */
    char *slots;
    size_t slot_bytes;
    bool lands;                   /* batches need slots of the receiver */
    banyan_memory_handle landing; /* the receiver's slots */
    bool is_registered;
} remote_flow;

/* Add a task. The view of the other end has no address. Both ends add their tasks in one order. */
banyan_status remote_flow_add(remote_flow *flow, const direct_place *to, const direct_place *from,
                              bool is_send);
/* Make the batches, and allocate the slots. At the receiver, register them in `world`. */
banyan_status remote_flow_finish(remote_flow *flow, banyan_world *world, bool is_send);
/* At the sender: set the receiver's slots. FORMAT for a handle that does not fit. */
banyan_status remote_flow_land(remote_flow *flow, int peer, const void *handle, size_t bytes);
/* End the registration of the slots. */
void remote_flow_withdraw(remote_flow *flow, banyan_world *world);
void remote_flow_free(remote_flow *flow, banyan_world *world);

/* Signals of a service, by rank of the world, and how often each was given in earlier runs. */
typedef struct remote_peer {
    uint64_t ready, arrived, put;
} remote_peer;

typedef struct remote_signals {
    banyan_world *world;
    banyan_transport *transport;
    uint32_t first;     /* three for each rank; none if `peers` is NULL */
    remote_peer *peers; /* NULL: this world has no rank to which memory is put */
} remote_signals;

/* Allocate the signals if any rank has peers that it reaches by puts alone. Collective. */
banyan_status remote_signals_open(banyan_world *world, banyan_transport *transport,
                                  remote_signals *signals);
void remote_signals_close(remote_signals *signals);

/* A partner's two flows during a run. */
typedef struct remote_run {
    int peer;
    const remote_flow *out, *in;
    uint32_t sent, emptied; /* batches */
    size_t task;            /* straight task in progress */
    odometer at;            /* its next run */
    uint64_t run_done, straight_done, marked;
    uint64_t seen_put;
    size_t pending; /* puts, when last looked at */
    bool has_ended; /* all puts are begun, and signalled */
    bool out_done, in_done;
} remote_run;

/* Begin a run with a partner: signal that its puts may come. */
banyan_status remote_run_begin(const remote_signals *signals, remote_run *run);
/* Move what can be moved without waiting. `*moved` is set if anything has; `past_caches` is of
 * strided_unpack_as. */
banyan_status remote_run_turn(const remote_signals *signals, remote_run *run, bool past_caches,
                              copy_progress *progress, bool *moved);
/* Describe the wait of a run that is not done, after "rank 2 waited 60 s". */
void remote_run_describe(const remote_signals *signals, const remote_run *run, char text[64]);

static inline bool remote_run_is_done(const remote_run *run)
{
    return run->out_done && run->in_done;
}

#endif
