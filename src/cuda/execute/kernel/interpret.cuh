/* The kernel that runs plans. */
#ifndef CUDA_EXECUTE_KERNEL_INTERPRET_CUH
#define CUDA_EXECUTE_KERNEL_INTERPRET_CUH

#include <banyan/device/multicast.cuh>

#include "cuda/execute/kernel/begin.cuh"
#include "cuda/execute/kernel/combine.cuh"
#include "cuda/execute/kernel/sync.cuh"

/* Steps of switch channels that use multicast memory. The threads synchronize before and after,
 * since that memory has ordinary addresses too. */
template <typename Element> BANYAN_DEVICE void multicast_piece(block_places places, uint64_t bytes)
{
    uint32_t thread = block_thread(), threads = block_threads();
    if (!places.is_of_group(0)) {
        banyan_device_multicast_store(places[1], places[0], bytes, thread, threads);
    } else if constexpr (banyan_device_multicast<Element>::ADDS) {
        if (places.is_of_group(1))
            banyan_device_multicast_load_store<Element>(places[1], places[0], bytes, thread,
                                                        threads);
        else
            banyan_device_multicast_load<Element>(places[1], places[0], bytes, thread, threads);
    }
}

template <typename Element> BANYAN_DEVICE_RARE void multicast_step(block_run run)
{
    block_pieces pieces = block_find_pieces(&run);
    BANYAN_DEVICE_LOOP
    for (; pieces.at < pieces.end; pieces.at += pieces.words)
        multicast_piece<Element>(block_places_of(pieces.at, 0), pieces.at[0]);
}

/* Called by all thread blocks. */
BANYAN_DEVICE_RARE void interpret_copy_share(char *to, const char *from, uint64_t bytes)
{
    banyan_device_copy(to, from, bytes, blockIdx.x * block_threads() + block_thread(),
                       gridDim.x * block_threads());
}

BANYAN_DEVICE bool interpret_barrier_all(const kernel_args *args, block_run run)
{
    return sync_barrier(run, args->barriers + args->barrier_count * KERNEL_COUNTER_WORDS,
                        gridDim.x);
}

BANYAN_DEVICE_RARE bool interpret_copy_in(const kernel_args *args, block_run run)
{
    if (!run.ended)
        interpret_copy_share(args->copy_in_to, args->copy_in_from, args->copy_in_bytes);
    return interpret_barrier_all(args, run);
}

BANYAN_DEVICE_RARE void interpret_copy_out(const kernel_args *args, block_run run)
{
    run.ended |= interpret_barrier_all(args, run);
    BANYAN_DEVICE_LOOP
    for (uint32_t i = 0; i < args->span_count && !run.ended; i++)
        interpret_copy_share(args->copy_out_to + args->spans[i].offset,
                             args->copy_out_from + args->spans[i].offset, args->spans[i].bytes);
}

/* Short pieces side by side, 8 bytes at a time. */
BANYAN_DEVICE_RARE void interpret_copy_short(const engine_step *step, block_pieces pieces)
{
    block_units units = block_find_units(pieces);
    BANYAN_DEVICE_LOOP
    for (; units.find(); units.next += block_threads()) {
        block_places places = block_places_of(units.pieces.at, 0);
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
        banyan_device_copy_each(block_places_of(pieces.at, 1), step->destination_count,
                                block_places_of(pieces.at, 0)[0], pieces.at[0], block_thread(),
                                block_threads());
}

BANYAN_DEVICE void interpret_barrier_parts(block_run *run)
{
    if (run->step->relaxed & KERNEL_BARRIER_FIRST)
        block_barrier(run);
}

template <typename Element>
BANYAN_DEVICE void interpret_step(const kernel_args *args, block_run *run)
{
    switch (run->step->kind) {
    case STEP_NOP:
        block_barrier(run);
        break;
    case STEP_COPY:
        interpret_barrier_parts(run);
        interpret_copy(run);
        break;
    case STEP_COMBINE:
        interpret_barrier_parts(run);
        run->ended |= combine_step<Element>(*run);
        break;
    case STEP_PACK:
    case STEP_UNPACK:
    case STEP_FORWARD:
        interpret_barrier_parts(run);
        run->ended |= packets_step(*run);
        break;
    case STEP_POST_PACK:
    case STEP_POST_FORWARD:
        run->ended |= sync_flush_before(*run);
        block_barrier(run);
        run->ended |= packets_step(*run);
        block_barrier(run);
        break;
    case ENGINE_MULTICAST:
        block_barrier(run);
        if (!run->ended)
            multicast_step<Element>(*run);
        block_barrier(run);
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

/* Every thread goes through all steps, even after memory must not be accessed any more, so that
 * all threads reach every barrier. */
template <typename Element>
BANYAN_DEVICE void interpret_steps(const kernel_args *args, block_run *run)
{
    const block_shared *shared = block_share();
    uint32_t count = block_section()->step_count;
    uint32_t end = args->end_step < count ? args->end_step : count;
    bool traces = shared->traces && block_thread() == 0;
    BANYAN_DEVICE_LOOP
    for (uint32_t at = args->first_step; at < end;) {
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
        run->piece = NULL;
        run->flag =
            step->new_flags ? block_flag(shared->flags + run->iteration) : shared->first_flag;
        uint64_t began_ns = traces ? banyan_device_time_ns() : 0;
        interpret_step<Element>(args, run);
        if (traces)
            interpret_trace(args, step, run->iteration, began_ns);
    }
}

/* Set those of the next run; no thread of this run reads them. */
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
    begin_run(args, &run);
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
}

#endif
