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

BANYAN_DEVICE void interpret_load_section(const kernel_args *args, char *resident)
{
    const char *from = args->sections + (uint64_t)blockIdx.x * args->section_bytes;
    BANYAN_DEVICE_LOOP
    for (uint32_t at = block_thread() * sizeof(uint4); at < args->section_bytes;
         at += block_threads() * sizeof(uint4))
        *(uint4 *)(resident + at) = banyan_device_load<uint4>(from + at);
}

BANYAN_DEVICE kernel_state interpret_load_state(const kernel_args *args)
{
    uint4 words = banyan_device_load<uint4>(&args->states[blockIdx.x]);
    kernel_state state;
    state.runs = (uint64_t)words.y << 32 | words.x;
    state.flags = (uint64_t)words.w << 32 | words.z;
    return state;
}

BANYAN_DEVICE void interpret_store_state(const kernel_args *args, kernel_state state)
{
    banyan_device_store<uint4>(&args->states[blockIdx.x],
                               make_uint4((uint32_t)state.runs, (uint32_t)(state.runs >> 32),
                                          (uint32_t)state.flags, (uint32_t)(state.flags >> 32)));
}

/* An array of a section: resident from its `first` entry on, or the program's. */
template <typename T>
BANYAN_DEVICE const T *interpret_array(const char *section, uint32_t at, const T *whole,
                                       uint64_t first)
{
    return at == 0 ? whole : (const T *)(section + at) - first;
}

/* One thread reads the section's head for all, while they load the section. */
BANYAN_DEVICE void interpret_find_arrays(const kernel_args *args, const char *resident)
{
    const char *from = args->sections + (uint64_t)blockIdx.x * args->section_bytes;
    kernel_section head;
    static_assert(sizeof head % sizeof(uint4) == 0, "it is read in words");
    uint4 words[sizeof head / sizeof(uint4)];
    BANYAN_DEVICE_UNROLL
    for (uint32_t i = 0; i < sizeof head / sizeof(uint4); i++)
        words[i] = banyan_device_load<uint4>(from + i * sizeof(uint4));
    memcpy(&head, words, sizeof head);
    block_shared *shared = block_share();
    shared->steps = interpret_array(resident, head.steps_at, head.steps, 0);
    shared->ends = interpret_array(resident, head.ends_at, head.ends, head.first_end);
    shared->operands =
        interpret_array(resident, head.operands_at, head.operands, head.first_operand);
    shared->words = interpret_array(resident, head.words_at, head.words, head.first_word);
    shared->step_count = head.step_count;
}

BANYAN_DEVICE void interpret_share(const kernel_args *args, kernel_state state)
{
    block_shared *shared = block_share();
    shared->run = state.runs;
    shared->flags = state.flags;
    shared->first_flag = block_flag(state.flags);
    shared->limits = {args->timeout_ns, {args->broken, args->stop}};
    shared->given_up = NULL;
    shared->waited_ns = 0;
    shared->traces = args->tracer && banyan_device_load_relaxed(&args->tracer->room) != 0;
    shared->ended = banyan_device_load<uint32_t>(args->broken);
}

BANYAN_DEVICE void interpret_begin(const kernel_args *args, block_run *run)
{
    char *resident = device_shared() + KERNEL_SHARED_BYTES;
    interpret_load_section(args, resident);
    if (block_thread() == 0)
        interpret_find_arrays(args, resident);
    interpret_await_stream();
    kernel_state state = interpret_load_state(args);
    BANYAN_DEVICE_LOOP
    for (uint32_t i = block_thread(); i < KERNEL_BASES; i += block_threads())
        block_share()->bases[i] =
            args->bases[i] + (i % 3 == 2 && (state.runs & 1) ? args->scratch_half : 0);
    if (block_thread() == 0)
        interpret_share(args, state);
    block_meet(run);
    if (block_thread() == 0)
        interpret_store_state(args, {state.runs + 1, state.flags + args->flags});
}

/* ---- copies before and after ---- */

/* By all thread blocks. */
BANYAN_DEVICE_RARE void interpret_copy_share(char *to, const char *from, uint64_t bytes)
{
    banyan_device_copy(to, from, bytes, blockIdx.x * block_threads() + block_thread(),
                       gridDim.x * block_threads());
}

BANYAN_DEVICE void interpret_copy_in(const kernel_args *args, block_run *run)
{
    if (!run->ended)
        interpret_copy_share(args->copy_in_to, args->copy_in_from, args->copy_in_bytes);
    sync_barrier(run, args->barriers, args->barrier_count, gridDim.x);
}

BANYAN_DEVICE void interpret_copy_out(const kernel_args *args, block_run *run)
{
    sync_barrier(run, args->barriers, args->barrier_count, gridDim.x);
    BANYAN_DEVICE_LOOP
    for (uint32_t i = 0; i < args->span_count && !run->ended; i++)
        interpret_copy_share(args->copy_out_to + args->spans[i].offset,
                             args->copy_out_from + args->spans[i].offset, args->spans[i].bytes);
}

/* ---- steps ---- */

BANYAN_DEVICE void interpret_copy(block_run run)
{
    block_pieces pieces = block_find_pieces(&run);
    BANYAN_DEVICE_LOOP
    for (; pieces.at < pieces.end; pieces.at += pieces.words) {
        block_places places = block_places_of(run.step, pieces.at, 1);
        banyan_device_copy_each(places, run.step->destination_count,
                                block_places_of(run.step, pieces.at, 0)[0], pieces.at[0],
                                block_thread(), block_threads());
    }
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
        if (!run->ended)
            interpret_copy(*run);
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
        sync_barrier(run, args->barriers, run->step->barrier, run->step->barrier_members);
        break;
    default:
        run->ended |= sync_step(*run);
    }
}

BANYAN_DEVICE void interpret_trace(const kernel_args *args, const engine_step *step,
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
    record->step = (uint32_t)(step - block_share()->steps);
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
    uint32_t count = shared->step_count;
    bool traces = shared->traces && block_thread() == 0;
    BANYAN_DEVICE_LOOP
    for (uint32_t at = 0; at < count;) {
        const engine_step *step = run->step = shared->steps + at;
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
        interpret_copy_in(args, &run);
    interpret_steps<Element>(args, &run);
    const kernel_section *section = (const kernel_section *)(device_shared() + KERNEL_SHARED_BYTES);
    run.step = block_share()->steps;
    run.ended |= sync_drain(run, section->first_end, section->end_count);
    if (blockIdx.x == 0)
        interpret_reset_semaphores(args);
    if (args->copy_out_to)
        interpret_copy_out(args, &run);
    block_meet(&run);
    if (block_thread() == 0)
        block_report(args);
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
