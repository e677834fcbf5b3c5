/* The work of every launch besides moving data: its turn, restoring the last buffer, and
 * failure. */
#ifndef CUDA_MIXED_RUN_CUH
#define CUDA_MIXED_RUN_CUH

#include <banyan/device/wait.cuh>

#include "cuda/mixed/unit.cuh"
#include "cuda/runtime/begin.cuh"
#include "cuda/runtime/device.cuh"
#include "cuda/runtime/report.cuh"

struct mixed_run {
    uint4 state;    /* as read: mixed_state */
    uint64_t shift; /* offset of the turn's receive buffers from the first ones */
    char *received; /* this turn's receive buffer */
    bool broken;
    /* For restoring: the thread's next unit, and the number that all threads restore in a round. */
    uint32_t next, share;
};

BANYAN_DEVICE uint32_t run_thread(void)
{
    return blockIdx.x * blockDim.x + threadIdx.x;
}

BANYAN_DEVICE uint32_t run_threads(void)
{
    return gridDim.x * blockDim.x;
}

/* Wait for the previous launch, and request the state. The state is in flight until
 * run_begin_asked, so that data can be requested at the same time. Work before this call costs
 * nothing, since the previous launch still runs. The wait is in a branch, because compilers move
 * work past the plain instruction. */
BANYAN_DEVICE void run_ask(const mixed_base *base, mixed_run *run)
{
    if (base->is_early)
        begin_wait_for_stream();
    begin_next();
    run->state = banyan_device_load<uint4>(&base->states[blockIdx.x]);
}

BANYAN_DEVICE void run_begin_asked(const mixed_base *base, mixed_run *run)
{
    run->shift = run->state.x * base->buffer_bytes;
    run->received = base->received + run->shift;
    run->broken = run->state.z != 0;
    run->next = run_thread();
    run->share = (uint32_t)((uint64_t)run->state.y * base->share >> 32) + 1;
}

BANYAN_DEVICE mixed_run run_begin(const mixed_base *base)
{
    mixed_run run = {};
    run_ask(base, &run);
    run_begin_asked(base, &run);
    return run;
}

/* Restore a round's share of the units that the previous launch received. */
BANYAN_DEVICE void run_put_back(const mixed_base *base, mixed_run *run)
{
    uint32_t last = run->state.x == 0 ? MIXED_TURNS - 1 : run->state.x - 1;
    char *at = base->received + last * base->buffer_bytes;
    uint64_t until = (uint64_t)run->next + run->share;
    uint32_t end = until < run->state.y ? (uint32_t)until : run->state.y;
    BANYAN_DEVICE_LOOP
    for (; run->next < end; run->next += run_threads())
        unit_clear(at + (uint64_t)run->next * MIXED_UNIT, base->nothing);
}

BANYAN_DEVICE void run_put_back_all(const mixed_base *base, mixed_run *run)
{
    run->share = run->state.y;
    run_put_back(base, run);
}

/* Write the state for the next launch. All threads call it, after they have read the state. */
BANYAN_DEVICE void run_count(const mixed_base *base, const mixed_run *run)
{
    __syncthreads();
    uint32_t next = run->state.x == MIXED_TURNS - 1 ? 0 : run->state.x + 1;
    BANYAN_DEVICE_LOOP
    for (uint32_t i = blockIdx.x + threadIdx.x * gridDim.x; i < base->state_count;
         i += run_threads())
        banyan_device_store<uint2>(&base->states[i], make_uint2(next, base->used));
}

/* Report the first failed wait; later launches do nothing. */
BANYAN_DEVICE_RARE void run_fail(const mixed_base *base, const banyan_device_wait *wait,
                                 uint32_t rank)
{
    if (!report_failure(base->broken, base->reports, banyan_device_wait_end(wait),
                        banyan_device_waited_ns(wait), report_what(rank, base->call)))
        return;
    for (uint32_t i = 0; i < base->state_count; i++)
        banyan_device_store<uint32_t>(&base->states[i].broken, 1);
}

/* Call it in every iteration of a waiting loop. */
BANYAN_DEVICE bool run_wait_on(const mixed_base *base, banyan_device_wait *wait, uint32_t rank)
{
    banyan_device_limits limits = {base->timeout_ns, {base->broken, &base->reports->stop}};
    if (banyan_device_wait_on(&limits, wait)) {
        if (wait->looks % BANYAN_DEVICE_LOOKS == 0)
            report_lasting(base->reports, wait, report_what(rank, base->call));
        return true;
    }
    run_fail(base, wait, rank);
    return false;
}

#endif
