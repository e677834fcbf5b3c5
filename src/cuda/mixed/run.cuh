/* What every launch does beside moving data: its turn, putting back, and failing. */
#ifndef CUDA_MIXED_RUN_CUH
#define CUDA_MIXED_RUN_CUH

#include <banyan/device/wait.cuh>

#include "cuda/begin.cuh"
#include "cuda/device.cuh"
#include "cuda/mixed/unit.cuh"

struct mixed_run {
    char *received; /* this turn's receive buffer */
    uint64_t shift; /* of the turn's receive buffers from the first ones */
    uint32_t turn;
    bool broken;
    /* Of putting back: the thread's next unit, of how many, and how many all threads do at a time.
     */
    uint32_t next, used, share;
};

BANYAN_DEVICE uint32_t run_thread(void)
{
    return blockIdx.x * blockDim.x + threadIdx.x;
}

BANYAN_DEVICE uint32_t run_threads(void)
{
    return gridDim.x * blockDim.x;
}

/* The launch may begin while the one before it ends. `parts`: putting back is done in so many. */
BANYAN_DEVICE mixed_run run_begin(const mixed_base *base, uint32_t parts)
{
    begin_await_stream();
    begin_next();
    uint4 state = banyan_device_load<uint4>(&base->states[blockIdx.x]);
    uint64_t shift = state.x * base->buffer_bytes;
    return {base->received + shift, shift, state.x, state.z != 0, run_thread(), state.y,
            state.y / parts + 1};
}

/* Units that the launch before this one received become nothing again. */
BANYAN_DEVICE void run_put_back(const mixed_base *base, mixed_run *run)
{
    uint32_t last = run->turn == 0 ? MIXED_TURNS - 1 : run->turn - 1;
    char *at = base->received + last * base->buffer_bytes;
    uint64_t until = (uint64_t)run->next + run->share;
    uint32_t end = until < run->used ? (uint32_t)until : run->used;
    BANYAN_DEVICE_LOOP
    for (; run->next < end; run->next += run_threads())
        unit_clear(at + (uint64_t)run->next * MIXED_UNIT, base->nothing);
}

/* All threads call it, when everything is put back. */
BANYAN_DEVICE void run_end(const mixed_base *base, const mixed_run *run)
{
    __syncthreads(); /* all have read the state */
    uint32_t next = run->turn == MIXED_TURNS - 1 ? 0 : run->turn + 1;
    BANYAN_DEVICE_LOOP
    for (uint32_t i = blockIdx.x + threadIdx.x * gridDim.x; i < base->state_count;
         i += run_threads())
        banyan_device_store<uint2>(&base->states[i], make_uint2(next, base->used));
}

/* A wait has ended in vain: the first one is told, and no later launch does anything. */
BANYAN_DEVICE_RARE void run_fail(const mixed_base *base, const banyan_device_wait *wait,
                                 uint32_t rank)
{
    if (banyan_device_claim(base->broken) != 0)
        return;
    for (uint32_t i = 0; i < base->state_count; i++)
        banyan_device_store<uint32_t>(&base->states[i].broken, 1);
    mixed_failure *failure = base->failure;
    failure->rank = rank;
    failure->waited_ns = banyan_device_waited_ns(wait);
    failure->op = base->op;
    failure->mode = base->mode;
    banyan_device_publish(&failure->end, banyan_device_wait_end(wait));
}

/* In every iteration of a loop that waits. */
BANYAN_DEVICE bool run_wait_on(const mixed_base *base, banyan_device_wait *wait, uint32_t rank)
{
    banyan_device_limits limits = {base->timeout_ns, {base->broken, base->stop}};
    if (banyan_device_wait_on(&limits, wait))
        return true;
    run_fail(base, wait, rank);
    return false;
}

#endif
