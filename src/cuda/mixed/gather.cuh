/* All-gather. Short messages go as packets; long ones in tiles, with a flag behind each, by thread
 * blocks that hand out the tiles of a round ago. */
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

BANYAN_DEVICE bool packets_send(const mixed_gather_args *args, const mixed_run *run, uint64_t at)
{
    uint64_t left = args->bytes - at;
    uint32_t bytes = left < GATHER_PACKET ? (uint32_t)left : GATHER_PACKET;
    uint2 data = banyan_device_load_unit(args->input + at, bytes);
    if (run->broken)
        return false;
    BANYAN_DEVICE_LOOP
    for (uint32_t i = 0; i < args->send_count; i++)
        banyan_device_packet16_write(args->sends[i] + run->shift + 2 * at, data, GATHER_FLAG);
    banyan_device_store_unit(args->output + args->rank * args->apart_bytes + at, data, bytes);
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

BANYAN_DEVICE void packets(const mixed_gather_args *args)
{
    uint64_t end = args->bytes, apart = run_threads() * GATHER_PACKET;
    mixed_run run = run_begin(&args->base, (uint32_t)((end + apart - 1) / apart));
    BANYAN_DEVICE_LOOP
    for (uint64_t at = run_thread() * GATHER_PACKET; at < end + apart; at += apart) {
        if (at < end && !packets_send(args, &run, at))
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

/* ---- tiles ---- */

/* This rank's slots, at one place. */
struct tiles_places {
    char *const *sends;
    uint64_t offset;
    BANYAN_DEVICE_MEMBER char *operator[](uint32_t i) const { return sends[i] + offset; }
};

BANYAN_DEVICE uint64_t tiles_length(const mixed_gather_args *args, uint64_t at)
{
    return args->bytes - at < args->tile_bytes ? args->bytes - at : args->tile_bytes;
}

BANYAN_DEVICE void tiles_send(const mixed_gather_args *args, const mixed_run *run, uint32_t tile)
{
    uint64_t at = tile * args->tile_bytes, bytes = tiles_length(args, at);
    tiles_places places = {args->sends, run->shift + at};
    banyan_device_copy_each(places, args->send_count, args->input + at, bytes, threadIdx.x,
                            blockDim.x);
    __syncthreads();
    if (threadIdx.x < args->send_count)
        banyan_device_store_release((uint64_t *)(args->sends[threadIdx.x] + run->shift +
                                                 args->flags + tile * sizeof(uint64_t)),
                                    GATHER_FLAG);
    banyan_device_copy(args->output + args->rank * args->apart_bytes + at, args->input + at, bytes,
                       threadIdx.x, blockDim.x);
}

BANYAN_DEVICE bool tiles_await(const mixed_gather_args *args, const mixed_run *run, uint32_t tile,
                               uint32_t rank)
{
    const uint64_t *flag =
        (const uint64_t *)(gather_slot(args, run, rank) + args->flags + tile * sizeof(uint64_t));
    banyan_device_wait wait = {};
    while (banyan_device_load_acquire(flag) != GATHER_FLAG) {
        if (!run_wait_on(&args->base, &wait, rank))
            return false;
    }
    return true;
}

BANYAN_DEVICE bool tiles_hand_out(const mixed_gather_args *args, const mixed_run *run,
                                  uint32_t tile)
{
    uint64_t at = tile * args->tile_bytes, bytes = tiles_length(args, at);
    bool failed = threadIdx.x < args->ranks && threadIdx.x != args->rank &&
                  !tiles_await(args, run, tile, threadIdx.x);
    if (__syncthreads_or(failed))
        return false;
    BANYAN_DEVICE_LOOP
    for (uint32_t rank = 0; rank < args->ranks; rank++) {
        if (rank != args->rank)
            banyan_device_copy(args->output + rank * args->apart_bytes + at,
                               gather_slot(args, run, rank) + at, bytes, threadIdx.x, blockDim.x);
    }
    return true;
}

BANYAN_DEVICE void tiles(const mixed_gather_args *args)
{
    uint32_t rounds = (args->tiles + gridDim.x - 1) / gridDim.x;
    mixed_run run = run_begin(&args->base, rounds);
    if (run.broken)
        return;
    BANYAN_DEVICE_LOOP
    for (uint32_t tile = blockIdx.x; tile < args->tiles + gridDim.x; tile += gridDim.x) {
        if (tile < args->tiles)
            tiles_send(args, &run, tile);
        run_put_back(&args->base, &run);
        if (tile - gridDim.x < args->tiles && !tiles_hand_out(args, &run, tile - gridDim.x))
            return;
    }
    run_end(&args->base, &run);
}

#endif
