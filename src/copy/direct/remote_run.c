/* Run the puts to a partner and the slots between it and this rank, without waiting for it.
 *
 * Freedom from deadlock: a rank takes turns with all partners and both directions. A receiver
 * empties each slot that has arrived, whatever its own sends wait for, so a sender gets its slots
 * back. Puts complete without an action of the receiver's thread. */
#include "copy/direct/remote.h"

#include <stdio.h>

/* Long runs are put in parts of this size, so many of them at a time. */
#define PUT_BYTES ((uint64_t)1 << 20)
#define PUTS_PENDING 16
/* Straight puts of this many bytes are signalled, so that the receiver sees progress. */
#define MARK_BYTES ((uint64_t)16 << 20)

enum { SIGNAL_READY, SIGNAL_ARRIVED, SIGNAL_PUT, SIGNALS };

banyan_status remote_signals_open(banyan_world *world, banyan_transport *transport,
                                  remote_signals *signals)
{
    uint32_t ranks = (uint32_t)banyan_world_size(world), first;
    uint64_t remote = 0;
    for (int rank = 0; rank < (int)ranks; rank++)
        remote += direct_is_remote(transport, rank);
    *signals = (remote_signals){.world = world, .transport = transport};
    RETURN_IF_FAILED(control_max(world, remote, &remote));
    if (remote == 0)
        return BANYAN_OK;
    void *peers = alloc_zeroed(ranks, sizeof *signals->peers, "the peers of a direct copy");
    banyan_status status = control_agree(world, peers ? BANYAN_OK : BANYAN_ERR_NO_MEMORY);
    if (status == BANYAN_OK)
        status = banyan_transport_signals_alloc(transport, SIGNALS * ranks, &first);
    if (status != BANYAN_OK) {
        free(peers);
        return status;
    }
    signals->first = first;
    signals->peers = peers;
    return BANYAN_OK;
}

void remote_signals_close(remote_signals *signals)
{
    if (signals->peers)
        banyan_transport_signals_free(signals->transport, signals->first,
                                      SIGNALS * (uint32_t)banyan_world_size(signals->world));
    free(signals->peers);
    signals->peers = NULL;
}

static uint32_t signal_of(const remote_signals *signals, int kind, int giver)
{
    return signals->first + (uint32_t)(kind * banyan_world_size(signals->world) + giver);
}

/* Return how often the peer has given a signal. */
static uint64_t given(const remote_signals *signals, int kind, int peer)
{
    return banyan_transport_read(signals->transport, signal_of(signals, kind, peer));
}

static banyan_status give(const remote_signals *signals, int kind, int peer)
{
    return banyan_transport_signal(signals->transport, peer,
                                   signal_of(signals, kind, banyan_world_rank(signals->world)), 1);
}

/* Signals of a run: the sender waits for the slots after the first ones; the receiver waits for the
 * marks, and for the end. */
static uint64_t count_ready(const remote_flow *flow)
{
    uint64_t batches = flow->batches.count;
    return 1 + (batches > REMOTE_SLOTS ? batches - REMOTE_SLOTS : 0);
}

static uint64_t count_put(const remote_flow *flow)
{
    return 1 + flow->straight_bytes / MARK_BYTES;
}

banyan_status remote_run_begin(const remote_signals *signals, remote_run *run)
{
    *run = (remote_run){.peer = run->peer, .out = run->out, .in = run->in};
    run->out_done = run->out->bytes == 0;
    run->in_done = run->in->bytes == 0;
    return run->in_done ? BANYAN_OK : give(signals, SIGNAL_READY, run->peer);
}

static banyan_status send_remote_batch(const remote_signals *signals, remote_run *run,
                                       copy_progress *progress)
{
    const remote_flow *flow = run->out;
    const remote_batch *batch = &flow->batches.data[run->sent];
    char *slot = flow->slots + run->sent % REMOTE_SLOTS * flow->slot_bytes;
    for (size_t i = 0; i < batch->piece_count; i++) {
        const remote_piece *piece = &flow->pieces.data[batch->first_piece + i];
        strided_pack_as(slot + piece->slot_offset, &flow->views.data[piece->view], piece->first,
                        piece->count, STRIDED_IN_CACHES);
    }
    RETURN_IF_FAILED(
        banyan_transport_put_begin(signals->transport, &batch->to, slot, batch->bytes));
    run->sent++;
    copy_progress_add(progress, batch->bytes);
    return give(signals, SIGNAL_ARRIVED, run->peer);
}

/* Put the next part of a straight task. */
static banyan_status put_next(const remote_signals *signals, remote_run *run,
                              copy_progress *progress)
{
    const remote_straight *task = &run->out->straight.data[run->task];
    const strided_move *runs = &task->runs;
    if (run->at.loops == NULL)
        run->at = (odometer){.loops = runs->loops, .count = runs->count};
    uint64_t left = runs->run_bytes - run->run_done, bytes = left < PUT_BYTES ? left : PUT_BYTES;
    banyan_remote to = task->to;
    to.offset += (uint64_t)run->at.to + run->run_done;
    RETURN_IF_FAILED(banyan_transport_put_begin(signals->transport, &to,
                                                runs->from + run->at.from + run->run_done, bytes));
    run->straight_done += bytes;
    copy_progress_add(progress, bytes);
    run->run_done += bytes;
    if (run->run_done == runs->run_bytes) {
        run->run_done = 0;
        if (!odometer_step(&run->at)) {
            run->task++;
            run->at = (odometer){.loops = NULL};
        }
    }
    if (run->straight_done / MARK_BYTES == run->marked)
        return BANYAN_OK;
    run->marked++;
    return give(signals, SIGNAL_PUT, run->peer);
}

static banyan_status out_turn(const remote_signals *signals, remote_run *run,
                              copy_progress *progress, bool *moved)
{
    const remote_flow *flow = run->out;
    remote_peer *peer = &signals->peers[run->peer];
    uint64_t ready = given(signals, SIGNAL_READY, run->peer) - peer->ready;
    if (ready == 0)
        return BANYAN_OK;
    while (run->sent < flow->batches.count && run->sent < ready - 1 + REMOTE_SLOTS) {
        RETURN_IF_FAILED(send_remote_batch(signals, run, progress));
        *moved = true;
    }
    while (run->task < flow->straight.count &&
           banyan_transport_pending(signals->transport, run->peer) < PUTS_PENDING) {
        RETURN_IF_FAILED(put_next(signals, run, progress));
        *moved = true;
    }
    if (!run->has_ended && run->sent == flow->batches.count && run->task == flow->straight.count) {
        RETURN_IF_FAILED(give(signals, SIGNAL_PUT, run->peer));
        run->has_ended = *moved = true;
    }
    size_t pending = banyan_transport_pending(signals->transport, run->peer);
    *moved |= pending < run->pending;
    run->pending = pending;
    run->out_done = run->has_ended && pending == 0;
    if (run->out_done)
        peer->ready += count_ready(flow);
    return BANYAN_OK;
}

static banyan_status take_remote_batch(const remote_signals *signals, remote_run *run,
                                       bool past_caches, copy_progress *progress)
{
    const remote_flow *flow = run->in;
    const remote_batch *batch = &flow->batches.data[run->emptied];
    const char *slot = flow->slots + run->emptied % REMOTE_SLOTS * flow->slot_bytes;
    for (size_t i = 0; i < batch->piece_count; i++) {
        const remote_piece *piece = &flow->pieces.data[batch->first_piece + i];
        strided_unpack_as(&flow->views.data[piece->view], piece->first, piece->count,
                          slot + piece->slot_offset,
                          past_caches ? STRIDED_PAST_CACHES : STRIDED_IN_CACHES);
    }
    run->emptied++;
    copy_progress_add(progress, batch->bytes);
    bool is_needed = run->emptied + REMOTE_SLOTS <= flow->batches.count;
    return is_needed ? give(signals, SIGNAL_READY, run->peer) : BANYAN_OK;
}

static banyan_status in_turn(const remote_signals *signals, remote_run *run, bool past_caches,
                             copy_progress *progress, bool *moved)
{
    const remote_flow *flow = run->in;
    remote_peer *peer = &signals->peers[run->peer];
    uint64_t put = given(signals, SIGNAL_PUT, run->peer) - peer->put;
    while (run->emptied < given(signals, SIGNAL_ARRIVED, run->peer) - peer->arrived) {
        RETURN_IF_FAILED(take_remote_batch(signals, run, past_caches, progress));
        *moved = true;
    }
    for (; run->seen_put < put; run->seen_put++) {
        uint64_t whole = flow->straight_bytes - run->seen_put * MARK_BYTES;
        copy_progress_add(progress, whole < MARK_BYTES ? whole : MARK_BYTES);
        *moved = true;
    }
    run->in_done = run->emptied == flow->batches.count && put == count_put(flow);
    if (run->in_done) {
        peer->put += count_put(flow);
        peer->arrived += flow->batches.count;
    }
    return BANYAN_OK;
}

banyan_status remote_run_turn(const remote_signals *signals, remote_run *run, bool past_caches,
                              copy_progress *progress, bool *moved)
{
    if (!run->in_done)
        RETURN_IF_FAILED(in_turn(signals, run, past_caches, progress, moved));
    return run->out_done ? BANYAN_OK : out_turn(signals, run, progress, moved);
}

void remote_run_describe(const remote_signals *signals, const remote_run *run, char text[64])
{
    bool has_come =
        run->out_done || given(signals, SIGNAL_READY, run->peer) != signals->peers[run->peer].ready;
    if (!has_come)
        snprintf(text, 64, "for rank %d to enter a direct copy", run->peer);
    else if (!run->in_done)
        snprintf(text, 64, "for data of rank %d", run->peer);
    else
        snprintf(text, 64, "for rank %d to take data", run->peer);
}
