/* One execution: a state machine for each direction, polled in turn, so that neither waits while
 * the other can move.
 *
 * Freedom from deadlock: sends and receives are two queues, and a rank works on the head of either
 * without regard to the other. All lists follow one order of all batches. Consider the first batch
 * in it that has not been unpacked. All earlier batches of its sender and of its receiver come
 * earlier in that order, so they are done. The batch is at the head of both queues, a slot has been
 * granted for it, and it moves. */
#include "copy/pipeline/backend.h"

#include <stdlib.h>

#include "copy/strided/loops.h"
#include "copy/strided/strided.h"
#include "core/deadline.h"
#include "core/error.h"

#define SLOTS BANYAN_PIPELINE_SLOTS

/* A batch between packing and sending. */
typedef struct outgoing {
    const banyan_slot_batch *batch;
    bool direct; /* packed into the peer's slot */
    int granted; /* the peer's slot, -1: not yet */
} outgoing;

typedef struct pipeline_execution {
    const banyan_pipeline *pipeline;
    const banyan_iteration *iterations;
    copy_progress *progress;
    size_t count;
    bool queues_signals; /* on streams, like all work */
    bool polls_events;   /* work is queued on streams, but signals are not */

    size_t next_pack; /* iteration of the next batch to pack; `count` after the last */
    outgoing flight[SLOTS];
    uint64_t packed, sent; /* batches so far; batch n is in flight[n % SLOTS] */

    size_t next_grant, next_unpack;      /* iterations */
    uint64_t granted, unpacked, emptied; /* batches so far; batch n uses slot n % SLOTS */

    bool moved;
    banyan_pipeline_stall stall;
} pipeline_execution;

static size_t next_send(const pipeline_execution *run, size_t from)
{
    while (from < run->count && run->iterations[from].send.peer < 0)
        from++;
    return from;
}

static size_t next_recv(const pipeline_execution *run, size_t from)
{
    while (from < run->count && run->iterations[from].recv.peer < 0)
        from++;
    return from;
}

static banyan_status event_reached(pipeline_execution *run, banyan_event event, bool *yes)
{
    const banyan_pipeline_launcher *launcher = run->pipeline->launcher;
    *yes = true;
    if (!run->polls_events)
        return BANYAN_OK;
    RETURN_IF_FAILED(launcher->reached(launcher->context, event, yes));
    run->stall.for_events |= !*yes;
    return BANYAN_OK;
}

static banyan_status take_grant(pipeline_execution *run, int peer, int *slot)
{
    const banyan_pipeline_buffers *buffers = run->pipeline->buffers;
    RETURN_IF_FAILED(buffers->take_grant(buffers->context, peer, slot));
    if (*slot < 0)
        run->stall.grant_from = peer;
    return BANYAN_OK;
}

static banyan_status pack_into(pipeline_execution *run, int slot, void *memory,
                               const banyan_slot_batch *batch)
{
    const banyan_pipeline *p = run->pipeline;
    const banyan_pipeline_launcher *launcher = p->launcher;
    /* The event was last recorded behind the send of this slot's previous batch. */
    if (run->queues_signals && run->packed >= SLOTS)
        RETURN_IF_FAILED(
            launcher->stream_wait(launcher->context, p->pack_stream, p->pack_event[slot]));
    RETURN_IF_FAILED(launcher->pack(launcher->context, p->pack_stream, memory, batch->segments,
                                    batch->segment_count));
    if (p->pack_stream)
        RETURN_IF_FAILED(launcher->record(launcher->context, p->pack_event[slot], p->pack_stream));
    return BANYAN_OK;
}

static banyan_status pack_next(pipeline_execution *run)
{
    const banyan_pipeline_buffers *buffers = run->pipeline->buffers;
    if (run->next_pack == run->count || run->packed - run->sent == SLOTS)
        return BANYAN_OK;
    const banyan_slot_batch *batch = &run->iterations[run->next_pack].send;
    int slot = (int)(run->packed % SLOTS), granted = -1;
    bool direct = buffers->peer_slot && buffers->peer_slot(buffers->context, batch->peer, 0);
    void *memory = buffers->send_slot[slot];
    if (direct) {
        RETURN_IF_FAILED(take_grant(run, batch->peer, &granted));
        if (granted < 0)
            return BANYAN_OK;
        memory = buffers->peer_slot(buffers->context, batch->peer, granted);
    }
    RETURN_IF_FAILED(pack_into(run, slot, memory, batch));
    run->flight[slot] = (outgoing){batch, direct, granted};
    run->packed++;
    run->next_pack = next_send(run, run->next_pack + 1);
    run->moved = true;
    return BANYAN_OK;
}

static banyan_status send_batch(pipeline_execution *run, int slot)
{
    const banyan_pipeline *p = run->pipeline;
    const banyan_pipeline_launcher *launcher = p->launcher;
    const banyan_pipeline_buffers *buffers = p->buffers;
    const outgoing *out = &run->flight[slot];
    if (run->queues_signals)
        RETURN_IF_FAILED(
            launcher->stream_wait(launcher->context, p->send_stream, p->pack_event[slot]));
    RETURN_IF_FAILED(buffers->send(buffers->context, p->send_stream, out->batch->peer,
                                   out->direct ? -1 : slot, out->granted, out->batch->bytes));
    if (run->queues_signals)
        RETURN_IF_FAILED(launcher->record(launcher->context, p->pack_event[slot], p->send_stream));
    return BANYAN_OK;
}

static banyan_status send_next(pipeline_execution *run)
{
    if (run->sent == run->packed)
        return BANYAN_OK;
    int slot = (int)(run->sent % SLOTS);
    outgoing *out = &run->flight[slot];
    bool packed;
    RETURN_IF_FAILED(event_reached(run, run->pipeline->pack_event[slot], &packed));
    if (!packed)
        return BANYAN_OK;
    if (out->granted < 0)
        RETURN_IF_FAILED(take_grant(run, out->batch->peer, &out->granted));
    if (out->granted < 0)
        return BANYAN_OK;
    RETURN_IF_FAILED(send_batch(run, slot));
    copy_progress_add(run->progress, out->batch->bytes);
    run->sent++;
    run->moved = true;
    return BANYAN_OK;
}

/* Grant a slot again as soon as its batch is unpacked, or the grant can be queued behind the
 * unpacking. */
static banyan_status pipeline_executor_grant_slots(pipeline_execution *run)
{
    const banyan_pipeline *p = run->pipeline;
    const banyan_pipeline_buffers *buffers = p->buffers;
    while (run->emptied < run->unpacked && run->next_grant < run->count) {
        bool empty;
        RETURN_IF_FAILED(event_reached(run, p->unpack_event[run->emptied % SLOTS], &empty));
        if (!empty)
            break;
        run->emptied++;
        run->moved = true;
    }
    while (run->next_grant < run->count && run->granted - run->emptied < SLOTS) {
        RETURN_IF_FAILED(buffers->grant(buffers->context, p->unpack_stream,
                                        run->iterations[run->next_grant].recv.peer,
                                        (int)(run->granted % SLOTS)));
        run->granted++;
        run->next_grant = next_recv(run, run->next_grant + 1);
        run->moved = true;
    }
    return BANYAN_OK;
}

static banyan_status unpack_next(pipeline_execution *run)
{
    const banyan_pipeline *p = run->pipeline;
    const banyan_pipeline_launcher *launcher = p->launcher;
    const banyan_pipeline_buffers *buffers = p->buffers;
    if (run->next_unpack == run->count)
        return BANYAN_OK;
    const banyan_slot_batch *batch = &run->iterations[run->next_unpack].recv;
    int slot = (int)(run->unpacked % SLOTS);
    /* Both slots may still be waiting for their events. */
    if (run->unpacked == run->granted)
        return BANYAN_OK;
    bool arrived;
    RETURN_IF_FAILED(buffers->take_arrival(buffers->context, batch->peer, slot, &arrived));
    if (!arrived) {
        run->stall.arrival_from = batch->peer;
        return BANYAN_OK;
    }
    RETURN_IF_FAILED(launcher->unpack(launcher->context, p->unpack_stream, buffers->recv_slot[slot],
                                      batch->segments, batch->segment_count));
    if (p->unpack_stream)
        RETURN_IF_FAILED(
            launcher->record(launcher->context, p->unpack_event[slot], p->unpack_stream));
    run->unpacked++;
    copy_progress_add(run->progress, batch->bytes);
    run->next_unpack = next_recv(run, run->next_unpack + 1);
    run->moved = true;
    return pipeline_executor_grant_slots(run);
}

/* Make one turn: steps that a partner waits for come first. */
static banyan_status pipeline_executor_turn(pipeline_execution *run)
{
    run->moved = false;
    run->stall = (banyan_pipeline_stall){.grant_from = -1, .arrival_from = -1};
    RETURN_IF_FAILED(pipeline_executor_grant_slots(run));
    RETURN_IF_FAILED(send_next(run));
    RETURN_IF_FAILED(unpack_next(run));
    RETURN_IF_FAILED(pack_next(run));
    return send_next(run);
}

static bool pipeline_executor_is_done(const pipeline_execution *run)
{
    return run->next_pack == run->count && run->sent == run->packed &&
           run->next_unpack == run->count;
}

static banyan_status run_until_done(pipeline_execution *run)
{
    uint64_t last_move_ns = 0;
    while (!pipeline_executor_is_done(run)) {
        RETURN_IF_FAILED(pipeline_executor_turn(run));
        if (run->moved) {
            last_move_ns = 0;
        } else {
            if (last_move_ns == 0)
                last_move_ns = time_now_ns();
            const banyan_pipeline_buffers *buffers = run->pipeline->buffers;
            run->stall.stalled_ns = time_now_ns() - last_move_ns;
            RETURN_IF_FAILED(buffers->idle(buffers->context, &run->stall));
        }
    }
    return BANYAN_OK;
}

/* Wait for the streams, also after a failure: no stream may touch the tensors once the call has
 * returned. */
static banyan_status drain_streams(const banyan_pipeline *p)
{
    const banyan_stream streams[] = {p->pack_stream, p->send_stream, p->unpack_stream};
    banyan_status status = BANYAN_OK;
    for (int i = 0; i < 3 && streams[i]; i++) {
        banyan_status end = p->launcher->synchronize(p->launcher->context, streams[i]);
        status = status == BANYAN_OK ? end : status;
    }
    return status;
}

banyan_status pipeline_run(const banyan_pipeline *pipeline, const banyan_iteration *iterations,
                           size_t count, copy_progress *progress)
{
    const banyan_pipeline_buffers *buffers = pipeline->buffers;
    pipeline_execution run = {
        .pipeline = pipeline, .iterations = iterations, .count = count, .progress = progress};
    run.queues_signals = pipeline->pack_stream && buffers->stream_ordered;
    run.polls_events = pipeline->pack_stream && !buffers->stream_ordered;
    run.next_pack = next_send(&run, 0);
    run.next_grant = run.next_unpack = next_recv(&run, 0);
    RETURN_IF_FAILED(buffers->begin(buffers->context));
    banyan_status status = run_until_done(&run);
    banyan_status drained = drain_streams(pipeline);
    return status != BANYAN_OK ? status : drained;
}

/* Moves within a rank: no slots, one copy. */

banyan_status pipeline_move_pairs(const banyan_pipeline *pipeline, const banyan_send_op *sends,
                                  const banyan_recv_op *recvs, const banyan_copy_pair *pairs,
                                  size_t count)
{
    const banyan_pipeline_launcher *launcher = pipeline->launcher;
    banyan_status status = BANYAN_OK;
    for (size_t i = 0; i < count && status == BANYAN_OK; i++)
        status = launcher->copy(launcher->context, pipeline->copy_stream,
                                &recvs[pairs[i].recv].tensor, &sends[pairs[i].send].tensor);
    if (!pipeline->copy_stream)
        return status;
    banyan_status end = launcher->synchronize(launcher->context, pipeline->copy_stream);
    return status != BANYAN_OK ? status : end;
}

banyan_status banyan_pipeline_self_moves(banyan_pipeline *pipeline, const banyan_send_op *sends,
                                         size_t send_count, const banyan_recv_op *recvs,
                                         size_t recv_count)
{
    size_t most = send_count < recv_count ? send_count : recv_count, count;
    banyan_copy_pair *pairs = alloc_zeroed(most, sizeof *pairs, "moves of a rank to itself");
    RETURN_IF_NO_MEMORY(pairs);
    banyan_status status = banyan_copy_match_local("pipeline", pipeline->rank, sends, send_count,
                                                   recvs, recv_count, pairs, &count);
    if (status == BANYAN_OK)
        status = pipeline_move_pairs(pipeline, sends, recvs, pairs, count);
    free(pairs);
    return status;
}

/* The launcher for host memory: each operation is complete when its call returns. */

/* Pack into the caches: the partner reads the slot next. */
static banyan_status host_pack(void *context, banyan_stream stream, void *slot,
                               const banyan_segment *segments, size_t count)
{
    (void)context;
    (void)stream;
    for (size_t i = 0; i < count; i++) {
        strided_view view;
        RETURN_IF_FAILED(strided_view_of(&segments[i].tensor, &view));
        strided_pack_as((char *)slot + segments[i].slot_offset, &view, segments[i].first_elem,
                        segments[i].elem_count, STRIDED_IN_CACHES);
    }
    return BANYAN_OK;
}

static banyan_status host_unpack(void *context, banyan_stream stream, const void *slot,
                                 const banyan_segment *segments, size_t count)
{
    (void)stream;
    bool past_caches = context && *(const bool *)context;
    for (size_t i = 0; i < count; i++) {
        strided_view view;
        RETURN_IF_FAILED(strided_view_of(&segments[i].tensor, &view));
        strided_unpack_as(&view, segments[i].first_elem, segments[i].elem_count,
                          (const char *)slot + segments[i].slot_offset,
                          past_caches ? STRIDED_PAST_CACHES : STRIDED_IN_CACHES);
    }
    if (past_caches)
        strided_fence();
    return BANYAN_OK;
}

static banyan_status pipeline_host_copy(void *context, banyan_stream stream,
                                        const DLTensor *destination, const DLTensor *source)
{
    (void)context;
    (void)stream;
    return banyan_tensor_copy(destination, source);
}

banyan_pipeline_launcher pipeline_host_launcher(const bool *past_caches)
{
    return (banyan_pipeline_launcher){.size = sizeof(banyan_pipeline_launcher),
                                      .context = (void *)(uintptr_t)past_caches,
                                      .pack = host_pack,
                                      .unpack = host_unpack,
                                      .copy = pipeline_host_copy};
}

const banyan_pipeline_launcher *banyan_pipeline_host_launcher(void)
{
    static const banyan_pipeline_launcher launcher = {.size = sizeof launcher,
                                                      .pack = host_pack,
                                                      .unpack = host_unpack,
                                                      .copy = pipeline_host_copy};
    return &launcher;
}
