/* All-gather. Short messages go as packets; long ones in chunks, with a flag for each. By multicast
 * this rank's own data comes back to it, and is written out with the others'. */
#ifndef CUDA_MIXED_GATHER_CUH
#define CUDA_MIXED_GATHER_CUH

#include <banyan/device/packet.cuh>

#include "cuda/mixed/run.cuh"

#define GATHER_BATCH 4
#define GATHER_PACKET 8 /* bytes of data */

/* What is there before a packet comes is no flag: two elements of -0, or one. */
#define GATHER_FLAG 1

BANYAN_DEVICE const char *gather_slot(const mixed_gather_args *args, const mixed_run *run,
                                      uint32_t rank)
{
    return run->received + (rank < args->rank ? rank : rank - 1) * args->slot_bytes;
}

/* ---- packets ---- */

template <bool MULTICAST>
BANYAN_DEVICE bool packets_send(const mixed_gather_args *args, const mixed_run *run, uint64_t at)
{
    uint64_t left = args->bytes - at;
    uint32_t bytes = left < GATHER_PACKET ? (uint32_t)left : GATHER_PACKET;
    uint2 data = banyan_device_load_unit(args->input + at, bytes);
    if (run->broken)
        return false;
    uint4 packets = make_uint4(data.x, GATHER_FLAG, data.y, GATHER_FLAG);
    if (MULTICAST) {
        unit_push<true>(args->all + run->shift + 2 * at, packets);
    } else {
        BANYAN_DEVICE_LOOP
        for (uint32_t i = 0; i < args->send_count; i++)
            unit_push<false>(args->sends[i] + run->shift + 2 * at, packets);
        banyan_device_store_unit(args->output + args->rank * args->apart_bytes + at, data, bytes);
    }
    return true;
}

BANYAN_DEVICE bool packets_receive(const mixed_gather_args *args, const mixed_run *run,
                                   uint32_t first, uint64_t at)
{
    uint64_t left = args->bytes - at;
    uint32_t bytes = left < GATHER_PACKET ? (uint32_t)left : GATHER_PACKET;
    uint2 data[GATHER_BATCH] = {};
    banyan_device_wait wait = {};
    for (;;) {
        uint32_t missing = GATHER_BATCH;
        BANYAN_DEVICE_UNROLL
        for (uint32_t k = 0; k < GATHER_BATCH; k++) {
            uint32_t rank = first + k;
            if (rank < args->ranks && rank != args->rank &&
                !banyan_device_packet16_read(gather_slot(args, run, rank) + 2 * at, GATHER_FLAG,
                                             &data[k]))
                missing = k;
        }
        if (missing == GATHER_BATCH)
            break;
        if (!run_wait_on(&args->base, &wait, first + missing))
            return false;
    }
    BANYAN_DEVICE_UNROLL
    for (uint32_t k = 0; k < GATHER_BATCH; k++) {
        uint32_t rank = first + k;
        if (rank < args->ranks && rank != args->rank)
            banyan_device_store_unit(args->output + rank * args->apart_bytes + at, data[k], bytes);
    }
    return true;
}

template <bool MULTICAST> BANYAN_DEVICE void packets(const mixed_gather_args *args)
{
    uint64_t end = args->bytes, apart = run_threads() * GATHER_PACKET;
    mixed_run run = run_begin(&args->base, (uint32_t)((end + apart - 1) / apart));
    BANYAN_DEVICE_LOOP
    for (uint64_t at = run_thread() * GATHER_PACKET; at < end + apart; at += apart) {
        if (at < end && !packets_send<MULTICAST>(args, &run, at))
            return;
        if (run.broken)
            return;
        run_put_back(&args->base, &run);
        uint64_t before = at - apart; /* in the first round: beyond any end */
        BANYAN_DEVICE_LOOP
        for (uint32_t first = 0; before < end && first < args->ranks; first += GATHER_BATCH) {
            if (!packets_receive(args, &run, first, before))
                return;
        }
    }
    run_end(&args->base, &run);
}

/* ---- chunks ----
 *
 * A warp moves a chunk to everybody and then says so; others of the thread block wait for chunks
 * and write them out. Who sends waits for nobody. */

/* This rank's slots, at one place. */
struct chunks_places {
    char *const *sends;
    uint64_t offset;
    BANYAN_DEVICE_MEMBER char *operator[](uint32_t i) const { return sends[i] + offset; }
};

struct chunks_warp {
    uint32_t lane, first, apart; /* chunks */
};

/* Of thread blocks with so many such warps, this one is number `warp`. */
BANYAN_DEVICE chunks_warp chunks_warp_of(uint32_t warp, uint32_t warps)
{
    return {threadIdx.x % BANYAN_DEVICE_WARP, blockIdx.x * warps + warp, gridDim.x * warps};
}

BANYAN_DEVICE uint64_t chunks_length(const mixed_gather_args *args, uint64_t at)
{
    return args->bytes - at < args->chunk_bytes ? args->bytes - at : args->chunk_bytes;
}

/* By a warp, to all. */
BANYAN_DEVICE void chunks_store(char *to, const char *from, uint64_t bytes, uint32_t lane)
{
    uint64_t whole = (uintptr_t)from % MIXED_UNIT == 0 ? bytes / MIXED_UNIT * MIXED_UNIT : 0;
    banyan_device_multicast_store(to, from, whole, lane, BANYAN_DEVICE_WARP);
    BANYAN_DEVICE_LOOP
    for (uint64_t at = whole + lane * MIXED_UNIT; at < bytes; at += BANYAN_DEVICE_WARP * MIXED_UNIT)
        banyan_device_multicast_store_word(to + at, unit_load<true>(from, at, bytes));
    banyan_device_multicast_fence();
}

template <bool MULTICAST>
BANYAN_DEVICE void chunks_send(const mixed_gather_args *args, const mixed_run *run,
                               chunks_warp warp)
{
    BANYAN_DEVICE_LOOP
    for (uint32_t chunk = warp.first; chunk < args->chunks; chunk += warp.apart) {
        uint64_t at = chunk * args->chunk_bytes, bytes = chunks_length(args, at);
        chunks_places places = {args->sends, run->shift + at};
        if (MULTICAST)
            chunks_store(args->all + run->shift + at, args->input + at, bytes, warp.lane);
        else
            banyan_device_copy_each(places, args->send_count, args->input + at, bytes, warp.lane,
                                    BANYAN_DEVICE_WARP);
        __syncwarp();
        if (warp.lane < args->send_count)
            banyan_device_store_release((uint64_t *)(args->sends[warp.lane] + run->shift +
                                                     args->flags + chunk * sizeof(uint64_t)),
                                        GATHER_FLAG);
    }
}

/* By a lane, for one peer. */
BANYAN_DEVICE bool chunks_await(const mixed_gather_args *args, const mixed_run *run, uint32_t chunk,
                                uint32_t rank)
{
    const uint64_t *flag =
        (const uint64_t *)(gather_slot(args, run, rank) + args->flags + chunk * sizeof(uint64_t));
    banyan_device_wait wait = {};
    while (banyan_device_load_acquire(flag) != GATHER_FLAG) {
        if (!run_wait_on(&args->base, &wait, rank))
            return false;
    }
    return true;
}

template <bool MULTICAST>
BANYAN_DEVICE bool chunks_hand_out(const mixed_gather_args *args, const mixed_run *run,
                                   chunks_warp warp)
{
    BANYAN_DEVICE_LOOP
    for (uint32_t chunk = warp.first; chunk < args->chunks; chunk += warp.apart) {
        uint64_t at = chunk * args->chunk_bytes, bytes = chunks_length(args, at);
        if (!MULTICAST)
            banyan_device_copy(args->output + args->rank * args->apart_bytes + at, args->input + at,
                               bytes, warp.lane, BANYAN_DEVICE_WARP);
        bool failed = warp.lane < args->ranks && warp.lane != args->rank &&
                      !chunks_await(args, run, chunk, warp.lane);
        if (__any_sync(0xffffffff, failed))
            return false;
        __syncwarp(); /* what one lane has acquired, all have */
        BANYAN_DEVICE_LOOP
        for (uint32_t rank = 0; rank < args->ranks; rank++) {
            if (rank != args->rank)
                banyan_device_copy(args->output + rank * args->apart_bytes + at,
                                   gather_slot(args, run, rank) + at, bytes, warp.lane,
                                   BANYAN_DEVICE_WARP);
        }
    }
    return true;
}

/* Before anything arrives there is time to put back. */
template <bool MULTICAST> BANYAN_DEVICE void chunks(const mixed_gather_args *args)
{
    uint32_t warp = threadIdx.x / BANYAN_DEVICE_WARP, warps = blockDim.x / BANYAN_DEVICE_WARP;
    mixed_run run = run_begin(&args->base, 1);
    if (run.broken)
        return;
    if (warps == 1 || warp < warps / 2)
        chunks_send<MULTICAST>(args, &run, chunks_warp_of(warp, warps == 1 ? 1 : warps / 2));
    run_put_back(&args->base, &run);
    if ((warps == 1 || warp >= warps / 2) &&
        !chunks_hand_out<MULTICAST>(args, &run,
                                    chunks_warp_of(warp - warps / 2, warps - warps / 2)))
        return;
    run_end(&args->base, &run);
}

#endif
