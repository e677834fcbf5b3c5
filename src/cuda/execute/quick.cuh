/* A second, small kernel, for what packets are for: on the shortest messages, a kernel's code and
 * its steps take longer to fetch than data to travel. It runs programs that move whole units of
 * aligned operands (pack_kind), and all steps through the same few instructions. */
#ifndef CUDA_EXECUTE_QUICK_CUH
#define CUDA_EXECUTE_QUICK_CUH

#include "cuda/execute/begin.cuh"
#include "cuda/execute/packets.cuh"

#define QUICK_BATCH 4

/* A unit of sources [first, first + QUICK_BATCH), data in the shape of packets. False: the wait has
 * ended in vain. */
BANYAN_DEVICE bool quick_take(block_run *run, block_places places, uint32_t first, uint64_t at,
                              uint4 *units)
{
    uint32_t sources = run->step->source_count;
    block_wait wait = {};
    for (;;) {
        uint32_t missing = QUICK_BATCH;
        BANYAN_DEVICE_UNROLL
        for (uint32_t k = 0; k < QUICK_BATCH; k++) {
            if (first + k < sources && places.is_packets(first + k)) {
                units[k] = banyan_device_load_packets(places[first + k] + 2 * at);
            } else if (first + k < sources && wait.wait.looks == 0) {
                uint2 data = banyan_device_load<uint2>(places[first + k] + at);
                units[k] = make_uint4(data.x, run->flag, data.y, run->flag);
            }
        }
        BANYAN_DEVICE_UNROLL
        for (uint32_t k = 0; k < QUICK_BATCH; k++) {
            if (first + k < sources && !packets_have_come(units[k], run->flag))
                missing = k;
        }
        if (missing == QUICK_BATCH)
            return true;
        if (!block_wait_on(run, &wait, first + missing, 0))
            return false;
    }
}

/* One source is moved as it is. */
template <typename Element>
BANYAN_DEVICE bool quick_reduce(block_run *run, block_places places, uint64_t at, uint2 *reduced)
{
    uint32_t sources = run->step->source_count;
    uint4 units[QUICK_BATCH] = {};
    if (!quick_take(run, places, 0, at, units))
        return false;
    *reduced = make_uint2(units[0].x, units[0].z);
    if (sources == 1)
        return true;
    banyan_device_sums<Element> sums = {};
    sums.begin(*reduced);
    for (uint32_t first = 0;;) {
        BANYAN_DEVICE_UNROLL
        for (uint32_t k = 0; k < QUICK_BATCH; k++) {
            if (first + k > 0 && first + k < sources)
                sums.template add<BANYAN_DEVICE_SUM>(make_uint2(units[k].x, units[k].z));
        }
        first += QUICK_BATCH;
        if (first >= sources)
            break;
        if (!quick_take(run, places, first, at, units))
            return false;
    }
    *reduced = sums.end();
    return true;
}

BANYAN_DEVICE void quick_store(const block_run *run, block_places places, uint64_t at, uint2 data)
{
    const engine_step *step = run->step;
    BANYAN_DEVICE_LOOP
    for (uint32_t i = step->source_count; i < block_operand_count(step); i++) {
        if (step->kind == STEP_COPY && places[i] == places[0])
            continue;
        if (places.is_packets(i))
            banyan_device_packet16_write(places[i] + 2 * at, data, run->flag);
        else
            banyan_device_store<uint2>(places[i] + at, data);
    }
}

/* A thread's next units, of one source. */
struct quick_units {
    const uint64_t *pieces[QUICK_BATCH]; /* NULL: there are no more */
    uint64_t at[QUICK_BATCH];
    uint4 of[QUICK_BATCH];

    BANYAN_DEVICE_MEMBER bool find(block_units *units)
    {
        BANYAN_DEVICE_UNROLL
        for (uint32_t k = 0; k < QUICK_BATCH; k++) {
            bool found = units->find();
            pieces[k] = found ? units->pieces.at : NULL;
            at[k] = units->at();
            units->next += found ? block_threads() : 0;
        }
        return pieces[0] != NULL;
    }
    BANYAN_DEVICE_MEMBER void load(const block_run *run, bool again)
    {
        BANYAN_DEVICE_UNROLL
        for (uint32_t k = 0; k < QUICK_BATCH; k++) {
            block_places places = block_places_of(pieces[k], 0);
            if (pieces[k] && places.is_packets(0)) {
                of[k] = banyan_device_load_packets(places[0] + 2 * at[k]);
            } else if (pieces[k] && !again) {
                uint2 data = banyan_device_load<uint2>(places[0] + at[k]);
                of[k] = make_uint4(data.x, run->flag, data.y, run->flag);
            }
        }
    }
    BANYAN_DEVICE_MEMBER bool have_come(const block_run *run) const
    {
        bool all = true;
        BANYAN_DEVICE_UNROLL
        for (uint32_t k = 0; k < QUICK_BATCH; k++)
            all &= !pieces[k] || packets_have_come(of[k], run->flag);
        return all;
    }
};

/* More units than threads, of one source: several of a thread's on their way at the same time. As
 * packets_step. */
BANYAN_DEVICE_RARE bool quick_move_many(block_run run)
{
    block_units units = block_find_units(block_find_pieces(&run));
    for (;;) {
        quick_units some = {};
        block_wait wait = {};
        if (!some.find(&units))
            return false;
        run.piece = some.pieces[0];
        for (some.load(&run, false); !some.have_come(&run); some.load(&run, true)) {
            if (!block_wait_on(&run, &wait, 0, 0))
                return true;
        }
        BANYAN_DEVICE_UNROLL
        for (uint32_t k = 0; k < QUICK_BATCH; k++) {
            if (some.pieces[k])
                quick_store(&run, block_places_of(some.pieces[k], 0), some.at[k],
                            make_uint2(some.of[k].x, some.of[k].z));
        }
    }
}

template <typename Element> BANYAN_DEVICE void quick_step(block_run *run)
{
    block_pieces pieces = block_find_pieces(run);
    block_units units = block_find_units(pieces);
    if (run->ended || pieces.at == pieces.end)
        return;
    if (run->step->source_count == 1 &&
        run->step->piece_count * pieces.at[0] > 8 * (uint64_t)block_threads()) {
        run->ended = quick_move_many(*run);
        return;
    }
    BANYAN_DEVICE_LOOP
    for (; units.find() && !run->ended; units.next += block_threads()) {
        block_places places = block_places_of(units.pieces.at, 0);
        run->piece = units.pieces.at;
        uint2 reduced;
        if (!quick_reduce<Element>(run, places, units.at(), &reduced))
            return;
        quick_store(run, places, units.at(), reduced);
    }
}

template <typename Element> BANYAN_DEVICE void quick(const kernel_args *args)
{
    block_run run = {};
    begin_run(args, &run);
    run.flag = block_share()->first_flag;
    uint32_t count = block_section()->step_count;
    BANYAN_DEVICE_LOOP
    for (uint32_t at = 0; at < count; at = run.step->jump) {
        run.step = block_steps() + at;
        if (run.step->kind == STEP_NOP || (run.step->relaxed & KERNEL_MEETS))
            block_meet(&run);
        if (run.step->kind != STEP_NOP && run.step->kind != KERNEL_PASS)
            quick_step<Element>(&run);
    }
}

#define EXECUTE_DEFINE_QUICK_KERNEL(name)                                                          \
    static __global__ void __launch_bounds__(KERNEL_THREADS_MOST, 1)                               \
        execute_quick_##name(const __grid_constant__ kernel_args args)                             \
    {                                                                                              \
        quick<banyan_device_##name>(&args);                                                        \
    }                                                                                              \
                                                                                                   \
    const void *execute_quick_kernel_##name(void)                                                  \
    {                                                                                              \
        return DEVICE_KERNEL(execute_quick_##name, kernel_args);                                   \
    }

#endif
