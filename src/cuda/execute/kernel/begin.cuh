/* The work before a thread block's first step: one memory access for the program, which overlaps
 * with the end of the previous launch, and one for the run's number. */
#ifndef CUDA_EXECUTE_KERNEL_BEGIN_CUH
#define CUDA_EXECUTE_KERNEL_BEGIN_CUH

#include "cuda/execute/kernel/block.cuh"
#include "cuda/runtime/begin.cuh"

BANYAN_DEVICE const char *begin_section(const kernel_args *args)
{
    return args->sections + (uint64_t)blockIdx.x * args->section_bytes;
}

/* These functions run before the previous launches have ended. */

BANYAN_DEVICE uint64_t begin_pair(uint32_t low, uint32_t high)
{
    return (uint64_t)high << 32 | low;
}

/* A thread's first word of the section and, in the first threads, one array entry are in
 * flight at the same time. */
BANYAN_DEVICE void begin_keep_section(const kernel_args *args)
{
    char *resident = device_shared() + KERNEL_SHARED_BYTES;
    const char *from = begin_section(args);
    uint32_t thread = block_thread(), at = thread * sizeof(uint4);
    uint32_t apart = block_threads() * sizeof(uint4);
    uint4 first = {}, array = {};
    if (at < args->section_bytes)
        first = banyan_device_load<uint4>(from + at);
    if (thread < KERNEL_ARRAYS)
        array = banyan_device_load<uint4>(from + offsetof(kernel_section, arrays) +
                                          thread * sizeof(kernel_array));
    if (at < args->section_bytes)
        *(uint4 *)(resident + at) = first;
    if (thread < KERNEL_ARRAYS)
        block_share()->arrays[thread] =
            begin_pair(array.x, array.y) + (array.z ? (uint64_t)(uintptr_t)resident : 0);
    BANYAN_DEVICE_LOOP
    for (at += apart; at < args->section_bytes; at += apart)
        *(uint4 *)(resident + at) = banyan_device_load<uint4>(from + at);
}

BANYAN_DEVICE void begin_keep_args(const kernel_args *args)
{
    block_shared *shared = block_share();
    BANYAN_DEVICE_LOOP
    for (uint32_t i = block_thread(); i < KERNEL_BASES; i += block_threads())
        shared->bases[i] = args->bases[i];
    if (block_thread() != 0)
        return;
    shared->limits = {args->timeout_ns, {args->broken, &args->reports->stop}};
    shared->reports = args->reports;
    shared->uploaded = args->uploaded;
    shared->waited_ns = 0;
    shared->traces = 0;
    shared->ended = 0;
}

/* These functions run after the previous launches have ended. */

/* Values that a thread reads before its first step, all in flight at the same time. */
struct begin_state {
    uint64_t runs, flags;
    uint32_t broken;
    uint64_t trace_room; /* thread 0 */
};

BANYAN_DEVICE begin_state begin_read(const kernel_args *args)
{
    begin_state state = {};
    uint4 both = banyan_device_load<uint4>(&args->states[blockIdx.x]);
    state.broken = banyan_device_load<uint32_t>(args->broken);
    if (block_thread() == 0 && args->tracer)
        state.trace_room = banyan_device_load_relaxed(&args->tracer->room);
    state.runs = begin_pair(both.x, both.y);
    state.flags = begin_pair(both.z, both.w);
    return state;
}

/* Called by thread 0. */
BANYAN_DEVICE void begin_share(const begin_state *state)
{
    block_shared *shared = block_share();
    shared->run = state->runs;
    shared->flags = state->flags;
    shared->first_flag = block_flag(state->flags);
    shared->traces = state->trace_room != 0;
    shared->ended = state->broken;
}

/* Add the offset of an odd run's half to the bases of scratch; each thread as in
 * begin_keep_args. */
BANYAN_DEVICE void begin_odd(const kernel_args *args)
{
    BANYAN_DEVICE_LOOP
    for (uint32_t i = block_thread(); i < KERNEL_BASES; i += block_threads())
        block_share()->bases[i] += i % 3 == 2 ? args->scratch_half : 0;
}

/* Called by thread 0 after all threads have read the state. */
BANYAN_DEVICE void begin_count(const kernel_args *args, const begin_state *state)
{
    uint64_t runs = state->runs + 1, flags = state->flags + args->flags;
    banyan_device_store<uint4>(&args->states[blockIdx.x],
                               make_uint4((uint32_t)runs, (uint32_t)(runs >> 32), (uint32_t)flags,
                                          (uint32_t)(flags >> 32)));
}

BANYAN_DEVICE void begin_run(const kernel_args *args, block_run *run)
{
    begin_keep_section(args);
    begin_keep_args(args);
    begin_wait_for_stream();
    begin_next();
    begin_state state = begin_read(args);
    if (state.runs & 1)
        begin_odd(args);
    if (block_thread() == 0)
        begin_share(&state);
    block_barrier(run);
    if (block_thread() == 0 && !args->goes_on)
        begin_count(args, &state);
}

#endif
