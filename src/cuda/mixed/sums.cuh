/* Waits for a unit of several ranks, and adds it. */
#ifndef CUDA_MIXED_SUMS_CUH
#define CUDA_MIXED_SUMS_CUH

#include "cuda/mixed/run.cuh"

#define SUMS_BATCH 4

/* Ranks in the order of the sum. The slots of all except this one are adjacent. */
struct sums_sources {
    const char *slots; /* in this turn's receive buffer */
    uint64_t slot_bytes;
    uint32_t count, own;
    const uint16_t *ranks; /* of the node; NULL: the sources' numbers */

    BANYAN_DEVICE_MEMBER const char *operator[](uint32_t i) const
    {
        return slots + (i < own ? i : i - 1) * slot_bytes;
    }
};

/* Wait for the units at byte `at` of sources [first, first + SUMS_BATCH), all zero before. False:
 * the wait gave up. */
template <typename Element, bool ANY, typename Args>
BANYAN_DEVICE bool sums_take(const Args *args, sums_sources sources, uint32_t first, uint64_t at,
                             uint4 *units)
{
    BANYAN_DEVICE_UNROLL
    for (uint32_t k = 0; k < SUMS_BATCH; k++) {
        if (first + k == sources.own)
            units[k] = unit_load<ANY>(args->own, at, args->bytes);
    }
    banyan_device_wait wait = {};
    for (;;) {
        uint32_t missing = SUMS_BATCH;
        BANYAN_DEVICE_UNROLL
        for (uint32_t k = 0; k < SUMS_BATCH; k++) {
            if (first + k < sources.count && first + k != sources.own)
                units[k] = banyan_device_load_packets(sources[first + k] + at);
        }
        BANYAN_DEVICE_UNROLL
        for (uint32_t k = 0; k < SUMS_BATCH; k++) {
            if (first + k < sources.count && first + k != sources.own &&
                !unit_has_come<Element>(units[k]))
                missing = k;
        }
        if (missing == SUMS_BATCH)
            return true;
        missing += first;
        if (!run_wait_on(&args->base, &wait, sources.ranks ? sources.ranks[missing] : missing))
            return false;
    }
}

#endif
