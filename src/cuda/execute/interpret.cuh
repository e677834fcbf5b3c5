/* The kernel that runs plans. */
#ifndef CUDA_EXECUTE_INTERPRET_CUH
#define CUDA_EXECUTE_INTERPRET_CUH

#include "cuda/execute/combine.cuh"
#include "cuda/execute/sync.cuh"

/* ---- beginning ---- */

/* A launch may be allowed to begin before the one before it in its stream has ended, as far as
 * here; otherwise these two do nothing. */
BANYAN_DEVICE void interpret_await_stream(void)
{
#ifdef __CUDACC__
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

BANYAN_DEVICE void interpret_admit_next(void)
{
#ifdef __CUDACC__
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* What a thread reads before its first step, all of it on its way at the same time. */
struct interpret_reads {
    uint4 section; /* the thread's first word of it */
    uint4 array;   /* of the first threads: one of the section's */
    uint4 state;
    uint32_t broken;     /* thread 0 */
    uint64_t trace_room; /* thread 0 */
};

BANYAN_DEVICE interpret_reads interpret_read(const kernel_args *args)
{
    interpret_reads reads = {};
    uint32_t thread = block_thread();
    const char *section = args->sections + (uint64_t)blockIdx.x * args->section_bytes;
    if (thread * sizeof(uint4) < args->section_bytes)
        reads.section = banyan_device_load<uint4>(section + thread * sizeof(uint4));
    if (thread < KERNEL_ARRAYS)
        reads.array = banyan_device_load<uint4>(section + offsetof(kernel_section, arrays) +
                                                thread * sizeof(kernel_array));
    interpret_await_stream();
    reads.state = banyan_device_load<uint4>(&args->states[blockIdx.x]);
    if (thread == 0)
        reads.broken = banyan_device_load<uint32_t>(args->broken);
    if (thread == 0 && args->tracer)
        reads.trace_room = banyan_device_load_relaxed(&args->tracer->room);
    return reads;
}

BANYAN_DEVICE uint64_t interpret_pair(uint32_t low, uint32_t high)
{
    return (uint64_t)high << 32 | low;
}

BANYAN_DEVICE void interpret_keep_section(const kernel_args *args, uint4 first, char *resident)
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
BANYAN_DEVICE void interpret_share(const kernel_args *args, const interpret_reads *reads,
                                   uint64_t runs, uint64_t flags)
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

BANYAN_DEVICE void interpret_begin(const kernel_args *args, block_run *run)
{
    char *resident = device_shared() + KERNEL_SHARED_BYTES;
    interpret_reads reads = interpret_read(args);
    uint32_t thread = block_thread();
    interpret_keep_section(args, reads.section, resident);
    if (thread < KERNEL_ARRAYS)
        block_share()->arrays[thread] = interpret_pair(reads.array.x, reads.array.y) +
                                        (reads.array.z ? (uint64_t)(uintptr_t)resident : 0);
    uint64_t runs = interpret_pair(reads.state.x, reads.state.y);
    uint64_t flags = interpret_pair(reads.state.z, reads.state.w);
    BANYAN_DEVICE_LOOP
    for (uint32_t i = thread; i < KERNEL_BASES; i += block_threads())
        block_share()->bases[i] =
            args->bases[i] + (i % 3 == 2 && (runs & 1) ? args->scratch_half : 0);
    if (thread == 0)
        interpret_share(args, &reads, runs, flags);
    block_meet(run);
    if (thread == 0) {
        uint64_t next = flags + args->flags;
        runs++;
        banyan_device_store<uint4>(&args->states[blockIdx.x],
                                   make_uint4((uint32_t)runs, (uint32_t)(runs >> 32),
                                              (uint32_t)next, (uint32_t)(next >> 32)));
    }
}

/* ---- copies before and after ---- */

/* By all thread blocks. */
BANYAN_DEVICE_RARE void interpret_copy_share(char *to, const char *from, uint64_t bytes)
{
    banyan_device_copy(to, from, bytes, blockIdx.x * block_threads() + block_thread(),
                       gridDim.x * block_threads());
}

BANYAN_DEVICE bool interpret_meet_all(const kernel_args *args, block_run run)
{
    return sync_barrier(run, args->barriers + args->barrier_count * KERNEL_COUNTER_WORDS,
                        gridDim.x);
}

BANYAN_DEVICE_RARE bool interpret_copy_in(const kernel_args *args, block_run run)
{
    if (!run.ended)
        interpret_copy_share(args->copy_in_to, args->copy_in_from, args->copy_in_bytes);
    return interpret_meet_all(args, run);
}

BANYAN_DEVICE_RARE void interpret_copy_out(const kernel_args *args, block_run run)
{
    run.ended |= interpret_meet_all(args, run);
    BANYAN_DEVICE_LOOP
    for (uint32_t i = 0; i < args->span_count && !run.ended; i++)
        interpret_copy_share(args->copy_out_to + args->spans[i].offset,
                             args->copy_out_from + args->spans[i].offset, args->spans[i].bytes);
}

/* ---- steps ---- */

/* Short pieces side by side, 8 bytes at a time. */
BANYAN_DEVICE_RARE void interpret_copy_short(const engine_step *step, block_pieces pieces)
{
    block_units units = block_find_units(pieces);
    BANYAN_DEVICE_LOOP
    for (; units.find(); units.next += block_threads()) {
        block_places places = block_places_of(step, units.pieces.at, 0);
        const char *from = places[0];
        uint2 data = banyan_device_load_unit(from + units.at(), units.bytes());
        BANYAN_DEVICE_LOOP
        for (uint32_t i = 1; i <= step->destination_count; i++) {
            if (places[i] != from)
                banyan_device_store_unit(places[i] + units.at(), data, units.bytes());
        }
    }
}

BANYAN_DEVICE void interpret_copy(const block_run *run)
{
    const engine_step *step = run->step;
    block_pieces pieces = block_find_pieces(run);
    if (run->ended)
        return;
    if (pieces.at < pieces.end && block_are_short(pieces))
        return interpret_copy_short(step, pieces);
    BANYAN_DEVICE_LOOP
    for (; pieces.at < pieces.end; pieces.at += pieces.words)
        banyan_device_copy_each(block_places_of(step, pieces.at, 1), step->destination_count,
                                block_places_of(step, pieces.at, 0)[0], pieces.at[0],
                                block_thread(), block_threads());
}

BANYAN_DEVICE void interpret_meet_parts(block_run *run)
{
    if (run->step->relaxed & KERNEL_MEETS)
        block_meet(run);
}

template <typename Element>
BANYAN_DEVICE void interpret_step(const kernel_args *args, block_run *run)
{
    switch (run->step->kind) {
    case STEP_NOP:
        block_meet(run);
        break;
    case STEP_COPY:
        interpret_meet_parts(run);
        interpret_copy(run);
        break;
    case STEP_COMBINE:
        interpret_meet_parts(run);
        run->ended |= combine_step<Element>(*run);
        break;
    case STEP_PACK:
    case STEP_UNPACK:
    case STEP_FORWARD:
        interpret_meet_parts(run);
        run->ended |= packets_step(*run);
        break;
    case STEP_POST_PACK:
    case STEP_POST_FORWARD:
        run->ended |= sync_flush_before(*run);
        block_meet(run);
        run->ended |= packets_step(*run);
        block_meet(run);
        break;
    case STEP_BARRIER:
        run->ended |= sync_barrier(*run, args->barriers + run->step->barrier * KERNEL_COUNTER_WORDS,
                                   run->step->barrier_members);
        break;
    default:
        run->ended |= sync_step(*run);
    }
}

BANYAN_DEVICE_RARE void interpret_trace(const kernel_args *args, const engine_step *step,
                                        uint32_t iteration, uint64_t began_ns)
{
    kernel_tracer *tracer = args->tracer;
    uint64_t number = banyan_device_take(&tracer->count, 1);
    kernel_trace *record = &tracer->records[number & (tracer->room - 1)];
    record->begin_ns = began_ns;
    record->end_ns = banyan_device_time_ns();
    record->waited_ns = block_share()->waited_ns;
    record->iteration = iteration;
    record->block = blockIdx.x;
    record->step = (uint32_t)(step - block_steps());
    record->loaded = args->loaded;
    record->uploaded = args->uploaded;
    block_share()->waited_ns = 0;
}

/* Every thread goes through all steps, also when nothing is to be touched any more, so that all
 * meet where they must. */
template <typename Element>
BANYAN_DEVICE void interpret_steps(const kernel_args *args, block_run *run)
{
    const block_shared *shared = block_share();
    uint32_t count = block_section()->step_count;
    bool traces = shared->traces && block_thread() == 0;
    BANYAN_DEVICE_LOOP
    for (uint32_t at = 0; at < count;) {
        const engine_step *step = run->step = block_steps() + at;
        if (step->kind == STEP_LOOP) {
            run->iteration = 0;
            at = step->iterations == 0 ? step->jump : at + 1;
            continue;
        }
        if (step->kind == STEP_LOOP_END) {
            at = ++run->iteration < step->iterations ? step->jump : at + 1;
            continue;
        }
        at = step->jump;
        if (step->kind == KERNEL_PASS)
            continue;
        run->flag =
            step->new_flags ? block_flag(shared->flags + run->iteration) : shared->first_flag;
        uint64_t began_ns = traces ? banyan_device_time_ns() : 0;
        interpret_step<Element>(args, run);
        if (traces)
            interpret_trace(args, step, run->iteration, began_ns);
    }
}

/* ---- ending ---- */

/* Of the next run; nobody of this one looks at them. */
BANYAN_DEVICE void interpret_reset_semaphores(const kernel_args *args)
{
    uint64_t *next =
        args->semaphores + (block_is_odd() ? 0 : args->semaphore_count) * KERNEL_COUNTER_WORDS;
    BANYAN_DEVICE_LOOP
    for (uint32_t i = block_thread(); i < args->semaphore_count; i += block_threads())
        next[i * KERNEL_COUNTER_WORDS] = args->semaphore_starts[i];
}

template <typename Element> BANYAN_DEVICE void interpret(const kernel_args *args)
{
    block_run run = {};
    interpret_begin(args, &run);
    if (args->copy_in_to)
        run.ended |= interpret_copy_in(args, run);
    interpret_steps<Element>(args, &run);
    if (block_section()->has_ports) {
        run.step = block_steps();
        run.ended |= sync_drain(run);
    }
    if (blockIdx.x == 0 && args->semaphore_count > 0)
        interpret_reset_semaphores(args);
    if (args->copy_out_to)
        interpret_copy_out(args, run);
    interpret_admit_next();
}

#define EXECUTE_DEFINE_KERNEL(name)                                                                \
    static __global__ void __launch_bounds__(KERNEL_THREADS_MOST, 1)                               \
        execute_##name(const __grid_constant__ kernel_args args)                                   \
    {                                                                                              \
        interpret<banyan_device_##name>(&args);                                                    \
    }                                                                                              \
                                                                                                   \
    const void *execute_kernel_##name(void)                                                        \
    {                                                                                              \
        return DEVICE_KERNEL(execute_##name, kernel_args);                                         \
    }

#endif
