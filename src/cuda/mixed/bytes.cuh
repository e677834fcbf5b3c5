/* Two-shot inside the node: every rank adds one piece of the data and pushes the sums to all ranks
 * that need them. Each thread goes through the pieces in rounds. In a round
 *
 *  - it sends one unit of every piece to the rank that adds the piece;
 *  - it adds the units of its own piece that the ranks sent in the previous round, and pushes the
 *    sum;
 *  - it stores the sums that other ranks pushed in the round before that.
 *
 * So both directions of the links are busy all the time.
 *
 * Peers may use more or fewer threads for the units. That is safe because a thread pushes a sum
 * before it waits for any part of its next unit. A thread that took several units together could
 * wait for a unit that a peer sends only after a sum of these. */
#ifndef CUDA_MIXED_BYTES_CUH
#define CUDA_MIXED_BYTES_CUH

#include "cuda/mixed/sums.cuh"

/* Send this thread's unit of the pieces to some of `count` ranks. BEGINS: as in one-shot modes. */
template <typename Element, bool ANY, bool BEGINS>
BANYAN_DEVICE bool bytes_send(const mixed_bytes_args *args, mixed_run *run, uint32_t first,
                              uint32_t count, uint64_t at)
{
    const mixed_send *sends = args->sends + first;
    const char *from[SUMS_BATCH];
    char *to[SUMS_BATCH];
    uint4 units[SUMS_BATCH] = {};
    BANYAN_DEVICE_UNROLL
    for (uint32_t k = 0; k < SUMS_BATCH; k++) {
        from[k] = sends[k].from;
        to[k] = sends[k].to + at;
        if (BEGINS)
            unit_keep(from[k], to[k]);
    }
    if (BEGINS)
        run_ask(&args->base, run);
    BANYAN_DEVICE_UNROLL
    for (uint32_t k = 0; k < SUMS_BATCH; k++) {
        if (first + k < count && at < sends[k].bytes)
            units[k] = unit_load<ANY>(from[k], at, sends[k].bytes);
    }
    if (BEGINS)
        run_begin_asked(&args->base, run);
    if (run->broken)
        return false;
    BANYAN_DEVICE_UNROLL
    for (uint32_t k = 0; k < SUMS_BATCH; k++) {
        if (first + k < count && at < sends[k].bytes)
            unit_push<false>(to[k] + run->shift, unit_settle<Element>(units[k]));
    }
    return true;
}

/* With multicast, the sums also come back to this rank, which stores them with the others. */
template <typename Element, bool ANY, bool MULTICAST>
BANYAN_DEVICE bool bytes_add_up(const mixed_bytes_args *args, const mixed_run *run, uint64_t at)
{
    sums_sources sources = {run->received, args->slot_bytes, args->source_count, args->own_source,
                            args->source_ranks};
    banyan_device_wide_sums<Element> sums = {};
    BANYAN_DEVICE_LOOP
    for (uint32_t first = 0; first < sources.count; first += SUMS_BATCH) {
        uint4 units[SUMS_BATCH] = {};
        if (!sums_take<Element, ANY>(args, sources, first, at, units))
            return false;
        BANYAN_DEVICE_UNROLL
        for (uint32_t k = 0; k < SUMS_BATCH; k++) {
            if (first + k == 0)
                sums.begin(units[k]);
            else if (first + k < sources.count)
                sums.template add<BANYAN_DEVICE_SUM>(units[k]);
        }
    }
    uint4 sum = unit_settle<Element>(sums.end());
    BANYAN_DEVICE_LOOP
    for (uint32_t i = 0; i < args->share_count; i++)
        unit_push<MULTICAST>(args->shares[i] + run->shift + at, sum);
    if (!MULTICAST)
        unit_store<ANY>(args->output, at, args->bytes, sum);
    return true;
}

template <typename Element, bool ANY>
BANYAN_DEVICE bool bytes_hand_out(const mixed_bytes_args *args, const mixed_run *run,
                                  uint32_t first, uint64_t at)
{
    const mixed_arrival *arrivals = args->arrivals + first;
    uint32_t count = args->arrival_count - first;
    uint4 units[SUMS_BATCH] = {};
    banyan_device_wait wait = {};
    for (;;) {
        uint32_t missing = SUMS_BATCH;
        BANYAN_DEVICE_UNROLL
        for (uint32_t k = 0; k < SUMS_BATCH; k++) {
            if (k < count && at < arrivals[k].bytes)
                units[k] = banyan_device_load_packets(run->received + arrivals[k].offset + at);
        }
        BANYAN_DEVICE_UNROLL
        for (uint32_t k = 0; k < SUMS_BATCH; k++) {
            if (!unit_has_come<Element>(units[k]))
                missing = k;
        }
        if (missing == SUMS_BATCH)
            break;
        if (!run_wait_on(&args->base, &wait, arrivals[missing].rank))
            return false;
    }
    BANYAN_DEVICE_UNROLL
    for (uint32_t k = 0; k < SUMS_BATCH; k++) {
        if (k < count && at < arrivals[k].bytes)
            unit_store<ANY>(arrivals[k].to, at, arrivals[k].bytes, units[k]);
    }
    return true;
}

/* At most one unit for each thread: its data are requested together with the state. */
template <typename Element, bool ANY, bool MULTICAST>
BANYAN_DEVICE void bytes_once(const mixed_bytes_args *args)
{
    mixed_run run = {};
    uint64_t at = run_thread() * MIXED_UNIT;
    bool moves = at < (uint64_t)args->units * MIXED_UNIT;
    uint32_t count = moves ? args->send_count : 0;
    if (!bytes_send<Element, ANY, true>(args, &run, 0, count, at))
        return;
    BANYAN_DEVICE_LOOP
    for (uint32_t first = SUMS_BATCH; first < count; first += SUMS_BATCH)
        (void)bytes_send<Element, ANY, false>(args, &run, first, count, at);
    run_count(&args->base, &run);
    run_put_back_all(&args->base, &run);
    if (at < args->bytes && !bytes_add_up<Element, ANY, MULTICAST>(args, &run, at))
        return;
    count = moves ? args->arrival_count : 0;
    BANYAN_DEVICE_LOOP
    for (uint32_t first = 0; first < count; first += SUMS_BATCH) {
        if (!bytes_hand_out<Element, ANY>(args, &run, first, at))
            return;
    }
}

template <typename Element, bool ANY, bool MULTICAST>
BANYAN_DEVICE bool bytes_round(const mixed_bytes_args *args, mixed_run *run, uint64_t at,
                               uint64_t end, uint64_t apart)
{
    BANYAN_DEVICE_LOOP
    for (uint32_t first = 0; at < end && first < args->send_count; first += SUMS_BATCH) {
        if (!bytes_send<Element, ANY, false>(args, run, first, args->send_count, at))
            return false;
    }
    if (run->broken)
        return false;
    run_put_back(&args->base, run);
    at -= apart; /* the first rounds: behind every end */
    if (at < args->bytes && !bytes_add_up<Element, ANY, MULTICAST>(args, run, at))
        return false;
    at -= apart;
    BANYAN_DEVICE_LOOP
    for (uint32_t first = 0; at < end && first < args->arrival_count; first += SUMS_BATCH) {
        if (!bytes_hand_out<Element, ANY>(args, run, first, at))
            return false;
    }
    return true;
}

template <typename Element, bool ANY, bool MULTICAST>
BANYAN_DEVICE void bytes(const mixed_bytes_args *args)
{
    uint64_t end = (uint64_t)args->units * MIXED_UNIT, apart = run_threads() * MIXED_UNIT;
    mixed_run run = run_begin(&args->base);
    BANYAN_DEVICE_LOOP
    for (uint64_t at = run_thread() * MIXED_UNIT; at < end + 2 * apart; at += apart) {
        if (!bytes_round<Element, ANY, MULTICAST>(args, &run, at, end, apart))
            return;
    }
    run_count(&args->base, &run);
}

#endif
