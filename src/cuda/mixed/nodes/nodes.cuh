/* Between nodes: steps of tiles, with flags. */
#ifndef CUDA_MIXED_NODES_NODES_CUH
#define CUDA_MIXED_NODES_NODES_CUH

#include <banyan/device/channel.cuh>

#include "cuda/mixed/nodes/kernel.h"
#include "cuda/mixed/run.cuh"

#define NODES_BATCH 4
#define NODES_WARP_BYTES (16 << 10)

/* A tile in a launch, for all steps of a phase; the last fields are for one step. */
struct nodes_tile {
    const nodes_args *args;
    const nodes_phase *phase;
    uint64_t shift; /* offset of this launch's slots and flags from the first ones */
    uint64_t flag;
    uint64_t at; /* in messages */
    uint32_t number;
    const nodes_step *step;
    uint64_t bytes;
};

/* Set the tile's range in a step. False: the step is too short to have one. */
BANYAN_DEVICE bool nodes_enter(nodes_tile *tile, uint32_t step)
{
    tile->step = &tile->args->steps[step];
    if (tile->at >= tile->step->bytes)
        return false;
    uint64_t left = tile->step->bytes - tile->at;
    tile->bytes = left < tile->args->tile_bytes ? left : tile->args->tile_bytes;
    return true;
}

template <typename T> BANYAN_DEVICE T *nodes_shifted(T *first, uint64_t shift)
{
    return (T *)((uintptr_t)first + shift);
}

/* The interface to puts by a kernel itself; this one has none. */
struct nodes_no_puts {
    static const bool ARE_THERE = false;
    /* Put `bytes`, then the flag's value: called by all threads of the block or of a warp. */
    BANYAN_DEVICE_MEMBER static void put(bool, char *, const char *, uint64_t, uint64_t *, uint64_t,
                                         uint32_t)
    {
    }
    /* Called by the thread that has seen the flag: make the earlier data readable. */
    BANYAN_DEVICE_MEMBER static void settle(uint64_t *, uint64_t) {}
};

/* Wait for the sources of a phase, one thread for each. */
template <typename Puts> BANYAN_DEVICE bool nodes_wait(nodes_tile *tile)
{
    bool failed = false;
    if (tile->phase->flagged == 0)
        return true;
    BANYAN_DEVICE_LOOP
    for (uint32_t i = threadIdx.x; i < tile->phase->source_count; i += blockDim.x) {
        const nodes_source *source = &tile->args->sources[tile->phase->first_source + i];
        if (!source->flags || !nodes_enter(tile, source->step))
            continue;
        const uint64_t *flag = nodes_shifted(source->flags, tile->shift) + tile->number;
        banyan_device_wait wait = {};
        while (!failed && banyan_device_load_acquire(flag) != tile->flag)
            failed = !run_wait_on(&tile->args->base, &wait, source->rank);
        if (source->is_far && !failed)
            Puts::settle((uint64_t *)flag, tile->flag);
    }
    return !__syncthreads_or(failed);
}

template <bool ANY>
BANYAN_DEVICE uint4 nodes_load(const nodes_tile *tile, const nodes_source *source, uint64_t at)
{
    const char *from = nodes_shifted(source->at, source->flags ? tile->shift : 0);
    return unit_load<ANY>(from + tile->at, at, tile->bytes);
}

template <bool ANY, bool MULTICAST>
BANYAN_DEVICE void nodes_store(const nodes_tile *tile, uint64_t at, uint4 unit)
{
    BANYAN_DEVICE_LOOP
    for (uint32_t i = 0; i < tile->step->target_count; i++) {
        const nodes_target *target = &tile->args->targets[tile->step->first_target + i];
        if (target->way == NODES_POSTED || target->way == NODES_PUT)
            continue;
        char *to = nodes_shifted(target->to, target->way == NODES_OUTPUT ? 0 : tile->shift);
        if (MULTICAST && target->way == NODES_CAST)
            banyan_device_multicast_store_word(to + tile->at + at, unit);
        else
            unit_store<ANY>(to + tile->at, at, tile->bytes, unit);
    }
}

template <typename Element, bool ANY>
BANYAN_DEVICE uint4 nodes_sum(const nodes_tile *tile, uint64_t at)
{
    const nodes_source *sources = &tile->args->sources[tile->step->first_source];
    uint32_t count = tile->step->source_count;
    banyan_device_wide_sums<Element> sums = {};
    BANYAN_DEVICE_LOOP
    for (uint32_t first = 0; first < count; first += NODES_BATCH) {
        uint4 units[NODES_BATCH] = {};
        BANYAN_DEVICE_UNROLL
        for (uint32_t k = 0; k < NODES_BATCH; k++) {
            if (first + k < count)
                units[k] = nodes_load<ANY>(tile, &sources[first + k], at);
        }
        BANYAN_DEVICE_UNROLL
        for (uint32_t k = 0; k < NODES_BATCH; k++) {
            if (first + k == 0)
                sums.begin(units[k]);
            else if (first + k < count)
                sums.template add<BANYAN_DEVICE_SUM>(units[k]);
        }
    }
    return sums.end();
}

/* A single source is copied bit by bit: a sum would change some bits. */
template <typename Element, bool ANY, bool MULTICAST>
BANYAN_DEVICE void nodes_move(const nodes_tile *tile)
{
    const nodes_source *only = &tile->args->sources[tile->step->first_source];
    BANYAN_DEVICE_LOOP
    for (uint64_t at = threadIdx.x * MIXED_UNIT; at < tile->bytes; at += blockDim.x * MIXED_UNIT)
        nodes_store<ANY, MULTICAST>(tile, at,
                                    tile->step->source_count == 1
                                        ? nodes_load<ANY>(tile, only, at)
                                        : nodes_sum<Element, ANY>(tile, at));
}

BANYAN_DEVICE bool nodes_post(const nodes_tile *tile, const nodes_target *target)
{
    const mixed_base *base = &tile->args->base;
    banyan_device_limits limits = {base->timeout_ns, {base->broken, &base->reports->stop}};
    banyan_port_request request = {};
    request.source = nodes_shifted(tile->step->staged, tile->shift) + tile->at;
    request.destination = nodes_shifted(target->to, tile->shift) + tile->at;
    request.bytes = tile->bytes;
    request.signal = nodes_shifted(target->flags, tile->shift) + tile->number;
    request.run = tile->flag;
    return banyan_device_post(&tile->args->queues[target->peer], &request, &limits);
}

/* Short tiles go to several targets at once, one warp for each. All threads share a long tile, if
 * the threads themselves copy it. */
template <typename Puts> BANYAN_DEVICE void nodes_put(nodes_tile *tile)
{
    const nodes_phase *phase = tile->phase;
    bool by_warp = phase->put > 1 && tile->args->tile_bytes <= NODES_WARP_BYTES;
    uint32_t first = by_warp ? threadIdx.x / BANYAN_DEVICE_WARP : 0;
    uint32_t apart = by_warp ? blockDim.x / BANYAN_DEVICE_WARP : 1;
    BANYAN_DEVICE_LOOP
    for (uint32_t i = first; i < phase->target_count; i += apart) {
        const nodes_target *target = &tile->args->targets[phase->first_target + i];
        if (target->way == NODES_PUT && nodes_enter(tile, target->step))
            Puts::put(by_warp, nodes_shifted(target->to, tile->shift) + tile->at,
                      nodes_shifted(tile->step->staged, tile->shift) + tile->at, tile->bytes,
                      nodes_shifted(target->flags, tile->shift) + tile->number, tile->flag,
                      target->peer);
    }
}

/* Signal the targets, one thread for each, after all threads have stored. If a message cannot be
 * posted, its receiver does not get it, and reports that at its own deadline. */
template <bool MULTICAST, typename Puts> BANYAN_DEVICE void nodes_signal(nodes_tile *tile)
{
    __syncthreads();
    BANYAN_DEVICE_LOOP
    for (uint32_t i = threadIdx.x; i < tile->phase->target_count; i += blockDim.x) {
        const nodes_target *target = &tile->args->targets[tile->phase->first_target + i];
        if (!nodes_enter(tile, target->step))
            continue;
        if (target->way == NODES_STORED)
            banyan_device_store_release(nodes_shifted(target->flags, tile->shift) + tile->number,
                                        tile->flag);
        else if (target->way == NODES_POSTED)
            (void)nodes_post(tile, target);
        else if (MULTICAST && target->way == NODES_CAST)
            banyan_device_multicast_store_release(
                nodes_shifted(target->flags, tile->shift) + tile->number, tile->flag);
    }
    if (Puts::ARE_THERE)
        nodes_put<Puts>(tile);
}

/* Execute a phase. Multicast stores write slots and flags that are read by their ordinary
 * addresses, so a fence separates accesses of the two kinds. */
template <typename Element, bool ANY, bool MULTICAST, typename Puts>
BANYAN_DEVICE bool nodes_take(const nodes_args *args, const nodes_phase *phase, uint64_t launches)
{
    nodes_tile tile = {args, phase, (launches & 1) * args->turn_bytes, launches + 1, 0, 0, NULL, 0};
    BANYAN_DEVICE_LOOP
    for (tile.number = blockIdx.x; tile.number * args->tile_bytes < phase->bytes;
         tile.number += gridDim.x) {
        tile.at = tile.number * args->tile_bytes;
        if (!nodes_wait<Puts>(&tile))
            return false;
        if (MULTICAST)
            banyan_device_multicast_fence();
        BANYAN_DEVICE_LOOP
        for (uint32_t i = 0; i < phase->step_count; i++) {
            if (nodes_enter(&tile, phase->first_step + i))
                nodes_move<Element, ANY, MULTICAST>(&tile);
        }
        if (MULTICAST)
            banyan_device_multicast_fence();
        nodes_signal<MULTICAST, Puts>(&tile);
        if (MULTICAST)
            banyan_device_multicast_fence();
    }
    return true;
}

/* The launch may begin while the previous one in its stream ends. Until that has ended it reads
 * neither states nor slots. */
template <typename Element, bool ANY, bool MULTICAST, typename Puts>
BANYAN_DEVICE void nodes(const nodes_args *args)
{
    begin_wait_for_stream();
    begin_next();
    uint4 state = banyan_device_load<uint4>(&args->base.states[blockIdx.x]);
    uint64_t launches = (uint64_t)state.y << 32 | state.x;
    if (state.z != 0)
        return;
    BANYAN_DEVICE_LOOP
    for (uint32_t i = 0; i < args->phase_count; i++) {
        if (!nodes_take<Element, ANY, MULTICAST, Puts>(args, &args->phases[i], launches))
            return;
    }
    launches++;
    __syncthreads(); /* all threads have read the state */
    BANYAN_DEVICE_LOOP
    for (uint32_t i = blockIdx.x + threadIdx.x * gridDim.x; i < args->base.state_count;
         i += run_threads())
        banyan_device_store<uint2>(&args->base.states[i],
                                   make_uint2((uint32_t)launches, (uint32_t)(launches >> 32)));
}

#endif
