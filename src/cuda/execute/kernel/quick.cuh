/* A second, small kernel for short packets: for the shortest messages, fetching a kernel's code
 * and steps takes longer than the data's journey. It runs programs that move whole units of
 * aligned operands (pack_kind), all steps through a few common instructions.
 *
 * The first step is prepared as far as possible before the previous launch has ended. After that
 * only one memory access, for the run's number and the data together, precedes the first store. */
#ifndef CUDA_EXECUTE_KERNEL_QUICK_CUH
#define CUDA_EXECUTE_KERNEL_QUICK_CUH

#include "cuda/execute/kernel/begin.cuh"
#include "cuda/execute/kernel/packets.cuh"

/* The position of a thread. */
struct quick_run {
    block_run of;
    begin_state state;
    uint64_t half; /* offset of this run's scratch from an even run's */
    bool begun;    /* the previous launch has ended, and the state was read */
};

/* Wait for the end of the previous launch; in two parts, with the state in flight between them. */
BANYAN_DEVICE void quick_ask(const kernel_args *args, quick_run *run)
{
    begin_wait_for_stream();
    begin_next();
    run->state = begin_read(args);
}

BANYAN_DEVICE void quick_begin_asked(const kernel_args *args, quick_run *run)
{
    run->of.flag = block_flag(run->state.flags);
    run->of.ended = run->state.broken != 0;
    run->half = run->state.runs & 1 ? args->scratch_half : 0;
    run->begun = true;
}

BANYAN_DEVICE void quick_begin(const kernel_args *args, quick_run *run)
{
    quick_ask(args, run);
    quick_begin_asked(args, run);
}

/* The address in an even run. */
BANYAN_DEVICE char *quick_place(uint64_t word, uint64_t at)
{
    return block_share()->bases[KERNEL_PLACE_BASE(word)] + (word & KERNEL_PLACE_OFFSET) +
           (word & KERNEL_PLACE_PACKETS ? 2 * at : at);
}

BANYAN_DEVICE char *quick_place_in(uint64_t word, uint64_t at, uint64_t half)
{
    return quick_place(word, at) + (word & KERNEL_PLACE_SCRATCH ? half : 0);
}

/* Like block_wait_on, without traces. */
BANYAN_DEVICE bool quick_wait_on(block_run *run, banyan_device_wait *wait, uint32_t index)
{
    banyan_device_pause();
    if (++wait->looks % BANYAN_DEVICE_LOOKS != 0)
        return true;
    wait->since = block_look(*run, wait->since, index, 0);
    run->ended = banyan_device_wait_end(wait) != BANYAN_DEVICE_WAITING;
    return !run->ended;
}

/* The program has no loops. */
BANYAN_DEVICE block_pieces quick_pieces(const engine_step *step)
{
    const uint64_t *first = block_words() + step->words;
    uint32_t words = 1 + block_operand_count(step);
    return {first, first + step->piece_count * words, words};
}

/* Most sources, or destinations, of a step that fit into registers. */
#define QUICK_FEW 4

/* A thread's unit of a step with at most this many sources, and as many destinations. The sets
 * have one bit for each; without bits, the instructions access nothing. */
template <int MOST> struct quick_unit {
    const char *from[MOST];
    char *to[MOST];
    uint4 of[MOST]; /* sources, data in the form of packets */
    uint32_t data, packets;
    uint32_t data_out, packets_out;
    uint32_t scratch, scratch_out;

    BANYAN_DEVICE_MEMBER void find(const uint64_t *piece, uint64_t at, uint32_t sources,
                                   uint32_t destinations)
    {
        data = packets = data_out = packets_out = scratch = scratch_out = 0;
        BANYAN_DEVICE_UNROLL
        for (uint32_t k = 0; k < MOST; k++) {
            uint64_t word = k < sources ? piece[1 + k] : 0;
            uint32_t bit = k < sources ? 1u << k : 0;
            from[k] = quick_place(word, at);
            packets |= word & KERNEL_PLACE_PACKETS ? bit : 0;
            scratch |= word & KERNEL_PLACE_SCRATCH ? bit : 0;
            data |= bit;
        }
        BANYAN_DEVICE_UNROLL
        for (uint32_t k = 0; k < MOST; k++) {
            uint64_t word = k < destinations ? piece[1 + sources + k] : 0;
            uint32_t bit = k < destinations ? 1u << k : 0;
            to[k] = quick_place(word, at);
            packets_out |= word & KERNEL_PLACE_PACKETS ? bit : 0;
            scratch_out |= word & KERNEL_PLACE_SCRATCH ? bit : 0;
            data_out |= bit;
        }
        data &= ~packets;
        data_out &= ~packets_out;
    }
    BANYAN_DEVICE_MEMBER void move_scratch(uint64_t half)
    {
        BANYAN_DEVICE_UNROLL
        for (uint32_t k = 0; k < MOST; k++) {
            from[k] += scratch >> k & 1 ? half : 0;
            to[k] += scratch_out >> k & 1 ? half : 0;
        }
    }
    BANYAN_DEVICE_MEMBER void load_data(void)
    {
        BANYAN_DEVICE_UNROLL
        for (uint32_t k = 0; k < MOST; k++) {
            if (data >> k & 1) {
                uint2 loaded = banyan_device_load<uint2>(from[k]);
                of[k] = make_uint4(loaded.x, 0, loaded.y, 0);
            }
        }
    }
    BANYAN_DEVICE_MEMBER void load_packets(void)
    {
        BANYAN_DEVICE_UNROLL
        for (uint32_t k = 0; k < MOST; k++) {
            if (packets >> k & 1)
                of[k] = banyan_device_load_packets(from[k]);
        }
    }
    /* Return the first source whose packets have not arrived; MOST: all have. */
    BANYAN_DEVICE_MEMBER uint32_t missing(uint32_t flag) const
    {
        uint32_t first = MOST;
        BANYAN_DEVICE_UNROLL
        for (uint32_t k = MOST; k-- > 0;)
            first = (packets >> k & 1) && !packets_have_come(of[k], flag) ? k : first;
        return first;
    }
    template <typename Element> BANYAN_DEVICE_MEMBER uint2 sum(void) const
    {
        banyan_device_sums<Element> sums = {};
        sums.begin(make_uint2(of[0].x, of[0].z));
        BANYAN_DEVICE_UNROLL
        for (uint32_t k = 1; k < MOST; k++) {
            if ((data | packets) >> k & 1)
                sums.template add<BANYAN_DEVICE_SUM>(make_uint2(of[k].x, of[k].z));
        }
        return sums.end();
    }
    BANYAN_DEVICE_MEMBER void store(uint2 result, uint32_t flag) const
    {
        BANYAN_DEVICE_UNROLL
        for (uint32_t k = 0; k < MOST; k++) {
            if (packets_out >> k & 1)
                banyan_device_packet16_write(to[k], result, flag);
            if (data_out >> k & 1)
                banyan_device_store<uint2>(to[k], result);
        }
    }
};

/* Wait for its packets and reduce them. The reduction is repeated at every poll, so that no code
 * must be fetched once they have arrived. False: the wait has failed. */
template <typename Element, int MOST>
BANYAN_DEVICE bool quick_take(block_run *run, quick_unit<MOST> *unit, bool adds, uint2 *result)
{
    banyan_device_wait wait = {};
    BANYAN_DEVICE_LOOP
    for (;;) {
        unit->load_packets();
        uint32_t missing = unit->missing(run->flag);
        *result = make_uint2(unit->of[0].x, unit->of[0].z);
        if (adds)
            *result = unit->template sum<Element>();
        if (missing == MOST)
            return true;
        if (!quick_wait_on(run, &wait, missing))
            return false;
    }
}

template <typename Element, int MOST>
BANYAN_DEVICE void quick_units(const kernel_args *args, quick_run *run)
{
    const engine_step *step = run->of.step;
    block_units units = block_find_units(quick_pieces(step));
    BANYAN_DEVICE_LOOP
    for (;; units.next += block_threads()) {
        bool found = units.find(), begins = !run->begun;
        if (!begins && (!found || run->of.ended))
            return;
        quick_unit<MOST> unit = {};
        run->of.piece = units.pieces.at;
        unit.find(units.pieces.at, units.at(), found ? step->source_count : 0,
                  found ? step->destination_count : 0);
        if (begins)
            quick_begin(args, run);
        if (!found || run->of.ended)
            return;
        unit.move_scratch(run->half);
        unit.load_data();
        uint2 result;
        if (!quick_take<Element>(&run->of, &unit, step->source_count > 1, &result))
            return;
        unit.store(result, run->of.flag);
    }
}

/* A separate function, for its registers. */
template <typename Element>
BANYAN_DEVICE_RARE quick_run quick_units_of_many(const kernel_args *args, quick_run run)
{
    quick_units<Element, KERNEL_QUICK_OPERANDS>(args, &run);
    return run;
}

/* For a step with one source: a thread's unit for a few places, or a few units for one place
 * each. */
struct quick_moves {
    const uint64_t *pieces[QUICK_FEW];
    const char *from[QUICK_FEW];
    char *to[QUICK_FEW],
        *odd_to[QUICK_FEW]; /* odd_to: the address in odd runs, while the half is not known yet */
    uint4 of[QUICK_FEW];    /* data in the form of packets */
    uint32_t count;         /* number of places */
    bool broadcasts;        /* all places get the first unit */
    bool waits, packs;      /* from packets, to packets */

    BANYAN_DEVICE_MEMBER void find(const kernel_args *args, const engine_step *step, uint64_t half)
    {
        block_units units = block_find_units(quick_pieces(step));
        waits = units.pieces.at[1] & KERNEL_PLACE_PACKETS;
        packs = units.pieces.at[2] & KERNEL_PLACE_PACKETS;
        broadcasts = step->destination_count > 1;
        bool found = units.find();
        count = found ? step->destination_count : 0;
        find_one(args, 0, &units, 0, found, half);
        BANYAN_DEVICE_UNROLL
        for (uint32_t k = 1; k < QUICK_FEW; k++)
            find_one(args, k, &units, k, broadcasts && k < count, half);
        if (broadcasts || KERNEL_STEP_UNITS(step) <= block_threads())
            return;
        BANYAN_DEVICE_UNROLL
        for (uint32_t k = 1; k < QUICK_FEW; k++) {
            units.next += block_threads();
            found = units.find();
            count += found;
            find_one(args, k, &units, 0, found, half);
        }
    }
    BANYAN_DEVICE_MEMBER void find_one(const kernel_args *args, uint32_t k,
                                       const block_units *units, uint32_t destination, bool found,
                                       uint64_t half)
    {
        const uint64_t *piece = units->pieces.at;
        uint64_t source = found ? piece[1] : 0, place = found ? piece[2 + destination] : 0;
        pieces[k] = piece;
        from[k] = quick_place_in(source, units->at(), half);
        to[k] = quick_place_in(place, units->at(), half);
        odd_to[k] = to[k] + (place & KERNEL_PLACE_SCRATCH ? args->scratch_half : 0);
    }
    BANYAN_DEVICE_MEMBER bool loads(uint32_t k, uint32_t places) const
    {
        return k < places && (k == 0 || !broadcasts);
    }
    BANYAN_DEVICE_MEMBER void load_data(uint32_t places)
    {
        BANYAN_DEVICE_UNROLL
        for (uint32_t k = 0; k < QUICK_FEW; k++) {
            if (loads(k, places) && !waits) {
                uint2 loaded = banyan_device_load<uint2>(from[k]);
                of[k] = make_uint4(loaded.x, 0, loaded.y, 0);
            }
        }
    }
    /* False: the wait has failed. */
    BANYAN_DEVICE_MEMBER bool take(block_run *run)
    {
        banyan_device_wait wait = {};
        BANYAN_DEVICE_LOOP
        for (;;) {
            const uint64_t *missing = NULL;
            BANYAN_DEVICE_UNROLL
            for (uint32_t k = 0; k < QUICK_FEW; k++) {
                if (loads(k, count))
                    of[k] = banyan_device_load_packets(from[k]);
            }
            BANYAN_DEVICE_UNROLL
            for (uint32_t k = 0; k < QUICK_FEW; k++)
                missing =
                    loads(k, count) && !packets_have_come(of[k], run->flag) ? pieces[k] : missing;
            run->piece = missing;
            if (!missing)
                return true;
            if (!quick_wait_on(run, &wait, 0))
                return false;
        }
    }
    BANYAN_DEVICE_MEMBER void store(uint32_t places, bool odd, uint32_t flag) const
    {
        BANYAN_DEVICE_UNROLL
        for (uint32_t k = 0; k < QUICK_FEW; k++) {
            uint2 data = broadcasts ? make_uint2(of[0].x, of[0].z) : make_uint2(of[k].x, of[k].z);
            char *at = odd ? odd_to[k] : to[k];
            if (k < places && packs)
                banyan_device_packet16_write(at, data, flag);
            if (k < places && !packs)
                banyan_device_store<uint2>(at, data);
        }
    }
};

/* The first step passes through these instructions without a unit before it waits for the previous
 * launch, so that they are in the cache for the actual step. */
BANYAN_DEVICE void quick_move(const kernel_args *args, quick_run *run)
{
    quick_moves moves;
    if (!run->begun && (quick_pieces(run->of.step).at[1] & KERNEL_PLACE_PACKETS))
        quick_begin(args, run);
    moves.find(args, run->of.step, run->half);
    bool rehearses = !run->begun;
    BANYAN_DEVICE_LOOP
    for (;; rehearses = false) {
        bool begins = !run->begun && !rehearses;
        uint32_t places = rehearses ? 0 : moves.count;
        if (begins)
            quick_ask(args, run);
        moves.load_data(places);
        if (begins)
            quick_begin_asked(args, run);
        if (run->of.ended || (moves.waits && !moves.take(&run->of)))
            return;
        moves.store(places, begins && (run->state.runs & 1), run->of.flag);
        if (!rehearses)
            return;
    }
}

#define QUICK_BATCH 4

/* A thread's next units, of one source. */
struct quick_batch {
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
    BANYAN_DEVICE_MEMBER char *place(const quick_run *run, uint32_t k, uint32_t operand) const
    {
        uint64_t word = pieces[k][1 + operand];
        return quick_place_in(word, at[k], run->half);
    }
    BANYAN_DEVICE_MEMBER bool is_packets(uint32_t k, uint32_t operand) const
    {
        return pieces[k][1 + operand] & KERNEL_PLACE_PACKETS;
    }
    BANYAN_DEVICE_MEMBER void load(const quick_run *run, bool again)
    {
        BANYAN_DEVICE_UNROLL
        for (uint32_t k = 0; k < QUICK_BATCH; k++) {
            if (pieces[k] && is_packets(k, 0)) {
                of[k] = banyan_device_load_packets(place(run, k, 0));
            } else if (pieces[k] && !again) {
                uint2 data = banyan_device_load<uint2>(place(run, k, 0));
                of[k] = make_uint4(data.x, run->of.flag, data.y, run->of.flag);
            }
        }
    }
    BANYAN_DEVICE_MEMBER bool have_come(const quick_run *run) const
    {
        bool all = true;
        BANYAN_DEVICE_UNROLL
        for (uint32_t k = 0; k < QUICK_BATCH; k++)
            all &= !pieces[k] || packets_have_come(of[k], run->of.flag);
        return all;
    }
    BANYAN_DEVICE_MEMBER void store(const quick_run *run, uint32_t k) const
    {
        uint2 data = make_uint2(of[k].x, of[k].z);
        BANYAN_DEVICE_LOOP
        for (uint32_t i = 1; i <= run->of.step->destination_count; i++) {
            if (is_packets(k, i))
                banyan_device_packet16_write(place(run, k, i), data, run->of.flag);
            else
                banyan_device_store<uint2>(place(run, k, i), data);
        }
    }
};

/* For a step with one source and many units: several of a thread's are in flight at the same
 * time. */
BANYAN_DEVICE_RARE quick_run quick_move_many(const kernel_args *args, quick_run run)
{
    block_units units = block_find_units(quick_pieces(run.of.step));
    if (!run.begun)
        quick_begin(args, &run);
    BANYAN_DEVICE_LOOP
    while (!run.of.ended) {
        quick_batch some = {};
        banyan_device_wait wait = {};
        if (!some.find(&units))
            break;
        run.of.piece = some.pieces[0];
        for (some.load(&run, false); !some.have_come(&run); some.load(&run, true)) {
            if (!quick_wait_on(&run.of, &wait, 0))
                return run;
        }
        BANYAN_DEVICE_UNROLL
        for (uint32_t k = 0; k < QUICK_BATCH; k++) {
            if (some.pieces[k])
                some.store(&run, k);
        }
    }
    return run;
}

template <typename Element> BANYAN_DEVICE void quick_step(const kernel_args *args, quick_run *run)
{
    const engine_step *step = run->of.step;
    uint32_t sources = step->source_count, places = step->destination_count;
    uint32_t units = KERNEL_STEP_UNITS(step), threads = block_threads();
    if (units == 0)
        return;
    if (sources == 1 && places <= QUICK_FEW && units <= (places == 1 ? QUICK_FEW : 1) * threads)
        quick_move(args, run);
    else if (sources == 1 && units > threads)
        *run = quick_move_many(args, *run);
    else if (sources > QUICK_FEW || places > QUICK_FEW)
        *run = quick_units_of_many<Element>(args, *run);
    else
        quick_units<Element, QUICK_FEW>(args, run);
}

/* The state counts this run once all threads have read it, while packets are in flight. */
template <typename Element> BANYAN_DEVICE void quick(const kernel_args *args)
{
    quick_run run = {};
    begin_keep_section(args);
    begin_keep_args(args);
    __syncthreads();
    uint32_t count = block_section()->step_count;
    bool counted = false;
    BANYAN_DEVICE_LOOP
    for (uint32_t at = 0; at < count; at = run.of.step->jump) {
        run.of.step = block_steps() + at;
        if (run.of.step->kind == STEP_NOP || (run.of.step->relaxed & KERNEL_BARRIER_FIRST))
            block_barrier(&run.of);
        if (run.of.step->kind != STEP_NOP && run.of.step->kind != KERNEL_PASS)
            quick_step<Element>(args, &run);
        if (run.begun && !counted) {
            block_barrier(&run.of);
            if (block_thread() == 0)
                begin_count(args, &run.state);
            counted = true;
        }
    }
    if (counted)
        return;
    quick_ask(args, &run);
    if (block_thread() == 0)
        begin_count(args, &run.state);
}

#endif
