/* What comes before a thread block's first step: one trip to memory. */
#ifndef CUDA_EXECUTE_BEGIN_CUH
#define CUDA_EXECUTE_BEGIN_CUH

#include "cuda/execute/block.cuh"

/* A launch may be allowed to begin before the one before it in its stream has ended, as far as
 * here; otherwise these two do nothing. */
BANYAN_DEVICE void begin_await_stream(void)
{
#ifdef __CUDACC__
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

BANYAN_DEVICE void begin_next(void)
{
#ifdef __CUDACC__
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* What a thread reads before its first step, all of it on its way at the same time. */
struct begin_reads {
    uint4 section; /* the thread's first word of it */
    uint4 array;   /* of the first threads: one of the section's */
    uint4 state;
    uint32_t broken;     /* thread 0 */
    uint64_t trace_room; /* thread 0 */
};

BANYAN_DEVICE begin_reads begin_read(const kernel_args *args)
{
    begin_reads reads = {};
    uint32_t thread = block_thread();
    const char *section = args->sections + (uint64_t)blockIdx.x * args->section_bytes;
    if (thread * sizeof(uint4) < args->section_bytes)
        reads.section = banyan_device_load<uint4>(section + thread * sizeof(uint4));
    if (thread < KERNEL_ARRAYS)
        reads.array = banyan_device_load<uint4>(section + offsetof(kernel_section, arrays) +
                                                thread * sizeof(kernel_array));
    begin_await_stream();
    reads.state = banyan_device_load<uint4>(&args->states[blockIdx.x]);
    if (thread == 0)
        reads.broken = banyan_device_load<uint32_t>(args->broken);
    if (thread == 0 && args->tracer)
        reads.trace_room = banyan_device_load_relaxed(&args->tracer->room);
    return reads;
}

BANYAN_DEVICE uint64_t begin_pair(uint32_t low, uint32_t high)
{
    return (uint64_t)high << 32 | low;
}

BANYAN_DEVICE void begin_keep_section(const kernel_args *args, uint4 first, char *resident)
{
    const char *from = args->sections + (uint64_t)blockIdx.x * args->section_bytes;
    uint32_t at = block_thread() * sizeof(uint4), apart = block_threads() * sizeof(uint4);
    if (at < args->section_bytes)
        *(uint4 *)(resident + at) = first;
    BANYAN_DEVICE_LOOP
    for (at += apart; at < args->section_bytes; at += apart)
        *(uint4 *)(resident + at) = banyan_device_load<uint4>(from + at);
}

/* Thread 0. */
BANYAN_DEVICE void begin_share(const kernel_args *args, const begin_reads *reads, uint64_t runs,
                               uint64_t flags)
{
    block_shared *shared = block_share();
    shared->run = runs;
    shared->flags = flags;
    shared->first_flag = block_flag(flags);
    shared->limits = {args->timeout_ns, {args->broken, args->stop}};
    shared->report = args->report;
    shared->uploaded = args->uploaded;
    shared->waited_ns = 0;
    shared->traces = reads->trace_room != 0;
    shared->ended = reads->broken;
}

BANYAN_DEVICE void begin_run(const kernel_args *args, block_run *run)
{
    char *resident = device_shared() + KERNEL_SHARED_BYTES;
    begin_reads reads = begin_read(args);
    uint32_t thread = block_thread();
    begin_keep_section(args, reads.section, resident);
    if (thread < KERNEL_ARRAYS)
        block_share()->arrays[thread] = begin_pair(reads.array.x, reads.array.y) +
                                        (reads.array.z ? (uint64_t)(uintptr_t)resident : 0);
    uint64_t runs = begin_pair(reads.state.x, reads.state.y);
    uint64_t flags = begin_pair(reads.state.z, reads.state.w);
    BANYAN_DEVICE_LOOP
    for (uint32_t i = thread; i < KERNEL_BASES; i += block_threads())
        block_share()->bases[i] =
            args->bases[i] + (i % 3 == 2 && (runs & 1) ? args->scratch_half : 0);
    if (thread == 0)
        begin_share(args, &reads, runs, flags);
    block_meet(run);
    if (thread == 0) {
        uint64_t next = flags + args->flags;
        runs++;
        banyan_device_store<uint4>(&args->states[blockIdx.x],
                                   make_uint4((uint32_t)runs, (uint32_t)(runs >> 32),
                                              (uint32_t)next, (uint32_t)(next >> 32)));
    }
}

#endif
