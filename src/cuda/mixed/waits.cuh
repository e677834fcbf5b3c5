/* Fewest waits: every unit goes to all who need it, and everybody adds up what it needs. A thread
 * that sends a unit awaits the same one of the others, a round later. */
#ifndef CUDA_MIXED_WAITS_CUH
#define CUDA_MIXED_WAITS_CUH

#include "cuda/mixed/sums.cuh"

/* This thread's unit, to some peers: those that take the same data stand side by side. By multicast
 * goes what is sent first, and to peers alone what else there is. */
template <typename Element, bool ANY, bool MULTICAST>
BANYAN_DEVICE bool waits_send(const mixed_waits_args *args, const mixed_run *run, uint32_t first,
                              uint64_t at)
{
    const mixed_send *sends = args->sends + first;
    uint32_t count = args->send_count - first;
    uint4 units[SUMS_BATCH] = {};
    BANYAN_DEVICE_UNROLL
    for (uint32_t k = 0; k < SUMS_BATCH; k++) {
        if (k < count && (k == 0 || sends[k].from != sends[k - 1].from))
            units[k] = unit_load<ANY>(sends[k].from, at, args->bytes);
        else if (k > 0)
            units[k] = units[k - 1];
    }
    if (run->broken)
        return false;
    BANYAN_DEVICE_UNROLL
    for (uint32_t k = 0; k < SUMS_BATCH; k++) {
        if (k >= count)
            continue;
        char *to = sends[k].to + run->shift + at;
        uint4 unit = unit_settle<Element>(units[k]);
        if (MULTICAST && first + k == 0)
            unit_push<true>(to, unit);
        else
            unit_push<false>(to, unit);
    }
    return true;
}

/* Sums of `fold` ranks each. */
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

template <typename Element, bool ANY, bool MULTICAST>
BANYAN_DEVICE void waits(const mixed_waits_args *args)
{
    uint64_t end = (uint64_t)args->units * MIXED_UNIT, apart = run_threads() * MIXED_UNIT;
    mixed_run run = run_begin(&args->base, (uint32_t)((end + apart - 1) / apart));
    BANYAN_DEVICE_LOOP
    for (uint64_t at = run_thread() * MIXED_UNIT; at < end + apart; at += apart) {
        BANYAN_DEVICE_LOOP
        for (uint32_t first = 0; at < end && first < args->send_count; first += SUMS_BATCH) {
            if (!waits_send<Element, ANY, MULTICAST>(args, &run, first, at))
                return;
        }
        if (run.broken)
            return;
        run_put_back(&args->base, &run);
        if (at - apart < end && !waits_receive<Element, ANY>(args, &run, at - apart))
            return;
    }
    run_end(&args->base, &run);
}

#endif
