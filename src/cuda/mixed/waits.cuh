/* One-shot: every unit goes to all ranks that need it, and every rank adds the units that it
 * needs. A thread sends unit i in one round and waits for the other ranks' units i in the next. If
 * there is only one round, it does both in that round. */
#ifndef CUDA_MIXED_WAITS_CUH
#define CUDA_MIXED_WAITS_CUH

#include "cuda/mixed/sums.cuh"

/* Send this thread's unit to some of `count` peers. The first send uses multicast, all others go
 * to single peers. BEGINS: the launch waits for the previous one after it has computed the places,
 * and before it reads. */
template <typename Element, bool ANY, bool MULTICAST, bool BEGINS>
BANYAN_DEVICE bool waits_send(const mixed_waits_args *args, mixed_run *run, uint32_t first,
                              uint32_t count, uint64_t at)
{
    const char *from[SUMS_BATCH];
    char *to[SUMS_BATCH];
    uint4 units[SUMS_BATCH] = {};
    BANYAN_DEVICE_UNROLL
    for (uint32_t k = 0; k < SUMS_BATCH; k++) {
        from[k] = args->sends[first + k].from;
        to[k] = args->sends[first + k].to + at;
        if (BEGINS)
            unit_keep(from[k], to[k]);
    }
    if (BEGINS)
        run_ask(&args->base, run);
    BANYAN_DEVICE_UNROLL
    for (uint32_t k = 0; k < SUMS_BATCH; k++) {
        if (first + k < count && (k == 0 || !args->sends_are_equal))
            units[k] = unit_load<ANY>(from[k], at, args->bytes);
    }
    if (BEGINS)
        run_begin_asked(&args->base, run);
    if (run->broken)
        return false;
    BANYAN_DEVICE_UNROLL
    for (uint32_t k = 0; k < SUMS_BATCH; k++) {
        if (first + k >= count)
            continue;
        uint4 unit = unit_settle<Element>(args->sends_are_equal ? units[0] : units[k]);
        if (MULTICAST && first + k == 0)
            unit_push<true>(to[k] + run->shift, unit);
        else
            unit_push<false>(to[k] + run->shift, unit);
    }
    return true;
}

/* Compute sums of `fold` ranks each. */
template <typename Element, bool ANY>
BANYAN_DEVICE bool waits_receive(const mixed_waits_args *args, const mixed_run *run, uint64_t at)
{
    uint64_t slot_bytes = (uint64_t)args->units * MIXED_UNIT;
    sums_sources sources = {run->received, slot_bytes, args->ranks, args->rank, NULL};
    banyan_device_wide_sums<Element> sums = {};
    char *to = args->output;
    uint32_t folded = 0;
    BANYAN_DEVICE_LOOP
    for (uint32_t first = 0; first < sources.count; first += SUMS_BATCH) {
        uint4 units[SUMS_BATCH] = {};
        if (!sums_take<Element, ANY>(args, sources, first, at, units))
            return false;
        BANYAN_DEVICE_UNROLL
        for (uint32_t k = 0; k < SUMS_BATCH; k++) {
            if (first + k >= sources.count)
                break;
            if (folded == 0)
                sums.begin(units[k]);
            else
                sums.template add<BANYAN_DEVICE_SUM>(units[k]);
            if (++folded == args->fold) {
                unit_store<ANY>(to, at, args->bytes, sums.end());
                to += args->apart_bytes;
                folded = 0;
            }
        }
    }
    return true;
}

/* At most one unit for each thread: its data are requested together with the state. */
template <typename Element, bool ANY, bool MULTICAST>
BANYAN_DEVICE void waits_once(const mixed_waits_args *args)
{
    mixed_run run = {};
    uint64_t at = run_thread() * MIXED_UNIT;
    bool moves = at < (uint64_t)args->units * MIXED_UNIT;
    uint32_t count = moves ? args->send_count : 0;
    if (!waits_send<Element, ANY, MULTICAST, true>(args, &run, 0, count, at))
        return;
    BANYAN_DEVICE_LOOP
    for (uint32_t first = SUMS_BATCH; first < count; first += SUMS_BATCH)
        (void)waits_send<Element, ANY, MULTICAST, false>(args, &run, first, count, at);
    run_count(&args->base, &run);
    run_put_back_all(&args->base, &run);
    if (moves)
        waits_receive<Element, ANY>(args, &run, at);
}

template <typename Element, bool ANY, bool MULTICAST>
BANYAN_DEVICE void waits(const mixed_waits_args *args)
{
    uint64_t end = (uint64_t)args->units * MIXED_UNIT, apart = run_threads() * MIXED_UNIT;
    mixed_run run = run_begin(&args->base);
    BANYAN_DEVICE_LOOP
    for (uint64_t at = run_thread() * MIXED_UNIT; at < end + apart; at += apart) {
        BANYAN_DEVICE_LOOP
        for (uint32_t first = 0; at < end && first < args->send_count; first += SUMS_BATCH) {
            if (!waits_send<Element, ANY, MULTICAST, false>(args, &run, first, args->send_count,
                                                            at))
                return;
        }
        if (run.broken)
            return;
        run_put_back(&args->base, &run);
        if (at - apart < end && !waits_receive<Element, ANY>(args, &run, at - apart))
            return;
    }
    run_count(&args->base, &run);
}

#endif
