/* Steps that signal and wait. One warp performs them all in the plan's order, one lane for each
 * end. */
#ifndef CUDA_EXECUTE_KERNEL_SYNC_CUH
#define CUDA_EXECUTE_KERNEL_SYNC_CUH

#include "cuda/execute/kernel/block.cuh"

/* Wait until a counter reaches `target`. */
BANYAN_DEVICE void sync_wait(block_run *run, const uint64_t *counter, uint64_t target,
                             uint32_t index)
{
    block_wait wait = {};
    while (banyan_device_load_acquire(counter) < target) {
        if (!block_wait_on(run, &wait, index, 0))
            return;
    }
    block_wait_ends(&wait);
}

/* Take one signal atomically: several thread blocks may wait on one channel, and each takes its
 * own. */
BANYAN_DEVICE void sync_take_signal(block_run *run, const kernel_end *end, uint32_t index)
{
    uint64_t taken = banyan_device_take(end->consumed, 1);
    sync_wait(run, end->incoming, taken + 1, index);
}

BANYAN_DEVICE void sync_flush(block_run *run, const kernel_end *end, uint32_t index)
{
    if (!end->queue)
        return;
    uint64_t posted = banyan_device_load_relaxed(&end->queue->posted);
    sync_wait(run, end->queue->done, posted, index);
}

BANYAN_DEVICE void sync_post(block_run *run, const kernel_end *end, kernel_request *request,
                             uint32_t index)
{
    kernel_queue *queue = end->queue;
    request->run = block_share()->run;
    uint64_t number = banyan_device_take(&queue->posted, 1);
    if (number >= queue->capacity)
        sync_wait(run, queue->done, number - queue->capacity + 1, index);
    if (!run->ended)
        banyan_device_post_at(queue, number, request);
}

BANYAN_DEVICE void sync_post_signal(block_run *run, const kernel_end *end, uint32_t index)
{
    if (!end->queue)
        return banyan_device_add_release(end->outgoing, 1);
    kernel_request request = {};
    request.kind = KERNEL_SIGNAL;
    request.signal = end->outgoing;
    sync_post(run, end, &request, index);
}

BANYAN_DEVICE void sync_post_copies(block_run *run, const kernel_end *end)
{
    block_pieces pieces = block_find_pieces(run);
    BANYAN_DEVICE_LOOP
    for (; end->queue && pieces.at < pieces.end && !run->ended; pieces.at += pieces.words) {
        block_places places = block_places_of(pieces.at, 0);
        kernel_request request = {};
        request.kind = KERNEL_PUT;
        request.source = places[0];
        request.destination = places[1];
        request.bytes = pieces.at[0];
        sync_post(run, end, &request, 0);
    }
}

BANYAN_DEVICE uint64_t *sync_semaphore(const kernel_end *end)
{
    return block_is_odd() ? end->outgoing : end->incoming;
}

BANYAN_DEVICE void sync_acquire(block_run *run, const kernel_end *end, uint32_t index)
{
    uint64_t *semaphore = sync_semaphore(end);
    block_wait wait = {};
    for (;;) {
        uint64_t value = banyan_device_load_relaxed(semaphore);
        if (value > 0 && banyan_device_exchange_if(semaphore, value, value - 1) == value)
            break;
        if (!block_wait_on(run, &wait, index, KERNEL_GRACE_NS))
            return;
    }
    block_wait_ends(&wait);
}

/* Arrivals are never reset: the n-th barrier is complete after n arrivals of each member. */
BANYAN_DEVICE void sync_arrive(block_run *run, uint64_t *arrivals, uint32_t members)
{
    uint64_t before = banyan_device_barrier(arrivals, 1), all = before - before % members + members;
    block_wait wait = {};
    while (banyan_device_load_acquire(arrivals) < all) {
        if (!block_wait_on(run, &wait, 0, KERNEL_GRACE_NS))
            return;
    }
    block_wait_ends(&wait);
}

/* Also a barrier of each thread block's threads. Returns as packets_step. */
BANYAN_DEVICE_RARE bool sync_barrier(block_run run, uint64_t *arrivals, uint32_t members)
{
    block_barrier(&run);
    if (block_thread() == 0 && !run.ended)
        sync_arrive(&run, arrivals, members);
    block_barrier(&run);
    return run.ended;
}

/* Operations that plans rarely use. */
BANYAN_DEVICE_RARE bool sync_apart(block_run run, const kernel_end *end, uint32_t index)
{
    switch (run.step->kind) {
    case STEP_FLUSH:
        sync_flush(&run, end, index);
        break;
    case STEP_POST_SIGNAL:
        sync_post_signal(&run, end, index);
        break;
    case STEP_POST_COPY:
        sync_post_copies(&run, end);
        break;
    case STEP_ACQUIRE:
        sync_acquire(&run, end, index);
        break;
    default:
        banyan_device_add_release(sync_semaphore(end), 1);
    }
    return run.ended;
}

BANYAN_DEVICE void sync_signal(const block_run *run, const kernel_end *end)
{
    if (run->step->relaxed)
        banyan_device_add_relaxed(end->outgoing, 1);
    else
        banyan_device_add_release(end->outgoing, 1);
}

/* Semaphores are acquired one after another, in the plan's order. Returns as packets_step. */
BANYAN_DEVICE bool sync_step(block_run run)
{
    const engine_step *step = run.step;
    const kernel_end *ends = block_ends() + step->ends;
    uint32_t lanes = step->kind == STEP_ACQUIRE ? 1 : BANYAN_DEVICE_WARP;
    uint32_t first = block_thread() < lanes ? block_thread() : step->end_count;
    BANYAN_DEVICE_LOOP
    for (uint32_t i = first; i < step->end_count && !run.ended; i += lanes) {
        if (step->kind == STEP_SIGNAL)
            sync_signal(&run, &ends[i]);
        else if (step->kind == STEP_WAIT)
            sync_take_signal(&run, &ends[i], i);
        else
            run.ended = sync_apart(run, &ends[i], i);
    }
    if (block_thread() < BANYAN_DEVICE_WARP)
        __syncwarp();
    return run.ended;
}

/* Wait until all posted requests are done before the run ends, so that their sources may be
 * overwritten. */
BANYAN_DEVICE_RARE bool sync_drain(block_run run)
{
    const kernel_end *ends = block_ends() + block_section()->first_end;
    uint32_t count = block_section()->end_count;
    BANYAN_DEVICE_LOOP
    for (uint32_t i = block_thread(); i < count && !run.ended; i += block_threads()) {
        if (ends[i].queue)
            sync_flush(&run, &ends[i], 0);
    }
    return run.ended;
}

/* Packets through a port channel are written here, after the earlier requests are done. */
BANYAN_DEVICE_RARE bool sync_flush_before(block_run run)
{
    if (block_thread() == 0 && !run.ended)
        sync_flush(&run, &block_ends()[run.step->ends], 0);
    return run.ended;
}

#endif
