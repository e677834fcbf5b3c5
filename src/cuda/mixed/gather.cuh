/* All-gather, which preserves every bit. Short messages are packets, long ones chunks. With
 * multicast this rank's own data comes back to it, and is stored with the others'. */
#ifndef CUDA_MIXED_GATHER_CUH
#define CUDA_MIXED_GATHER_CUH

#include <banyan/device/packet.cuh>

#include "cuda/mixed/run.cuh"

#define GATHER_BATCH 4
#define GATHER_PACKET 8 /* bytes of data */

/* The initial contents of a packet are not a valid flag: two elements of -0, or one. */
#define GATHER_FLAG 1

BANYAN_DEVICE const char *gather_slot(const mixed_gather_args *args, const mixed_run *run,
                                      uint32_t rank)
{
    return run->received + (rank < args->rank ? rank : rank - 1) * args->slot_bytes;
}

/* Return the bytes of the packet at `at`; none beyond the end. */
BANYAN_DEVICE uint32_t packets_bytes(const mixed_gather_args *args, uint64_t at)
{
    uint64_t left = at < args->bytes ? args->bytes - at : 0;
    return left < GATHER_PACKET ? (uint32_t)left : GATHER_PACKET;
}

template <bool MULTICAST>
BANYAN_DEVICE void packets_send(const mixed_gather_args *args, const mixed_run *run, uint64_t at,
                                uint2 data)
{
    uint4 packets = make_uint4(data.x, GATHER_FLAG, data.y, GATHER_FLAG);
    if (MULTICAST) {
        unit_push<true>(args->all + run->shift + 2 * at, packets);
    } else {
        BANYAN_DEVICE_LOOP
        for (uint32_t i = 0; i < args->send_count; i++)
            unit_push<false>(args->sends[i] + run->shift + 2 * at, packets);
        banyan_device_store_unit(args->output + args->rank * args->apart_bytes + at, data,
                                 packets_bytes(args, at));
    }
}

BANYAN_DEVICE bool packets_receive(const mixed_gather_args *args, const mixed_run *run,
                                   uint32_t first, uint64_t at)
{
    uint32_t bytes = packets_bytes(args, at);
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

/* Receive from all ranks. */
BANYAN_DEVICE bool packets_receive_all(const mixed_gather_args *args, const mixed_run *run,
                                       uint64_t at)
{
    BANYAN_DEVICE_LOOP
    for (uint32_t first = 0; first < args->ranks; first += GATHER_BATCH) {
        if (!packets_receive(args, run, first, at))
            return false;
    }
    return true;
}

/* There are few rounds, usually one: everything is sent before any wait. The first data are
 * requested together with the state. */
template <bool MULTICAST> BANYAN_DEVICE void packets(const mixed_gather_args *args)
{
    mixed_run run = {};
    uint64_t first = run_thread() * GATHER_PACKET, apart = run_threads() * GATHER_PACKET;
    uint32_t bytes = packets_bytes(args, first);
    run_ask(&args->base, &run);
    uint2 data = banyan_device_load_unit(args->input + first, bytes);
    run_begin_asked(&args->base, &run);
    if (run.broken)
        return;
    if (bytes > 0)
        packets_send<MULTICAST>(args, &run, first, data);
    BANYAN_DEVICE_LOOP
    for (uint64_t at = first + apart; at < args->bytes; at += apart) {
        data = banyan_device_load_unit(args->input + at, packets_bytes(args, at));
        packets_send<MULTICAST>(args, &run, at, data);
    }
    run_count(&args->base, &run);
    run_put_back_all(&args->base, &run);
    BANYAN_DEVICE_LOOP
    for (uint64_t at = first; at < args->bytes; at += apart) {
        if (!packets_receive_all(args, &run, at))
            return;
    }
}

/* Chunks. Units show their own arrival, as in sums, although they may contain any bits. For this,
 * the sender combines all words of a chunk with a key by exclusive or, such that no result equals
 * the value of a cleared word. Each word of a chunk excludes one key, so if there are more keys
 * than words, one of them is usable; usually it is the first. The key travels beside the chunk. */

#define CHUNKS_PEERS 3 /* peers waited for at a time */
#define CHUNKS_UNITS (MIXED_CHUNK / MIXED_UNIT / BANYAN_DEVICE_WARP) /* of a lane, in a chunk */

BANYAN_DEVICE uint4 chunks_turn(uint4 unit, uint32_t key)
{
    return make_uint4(unit.x ^ key, unit.y ^ key, unit.z ^ key, unit.w ^ key);
}

BANYAN_DEVICE bool chunks_has(uint4 unit, uint32_t word)
{
    return unit.x == word || unit.y == word || unit.z == word || unit.w == word;
}

/* Return a lane's first byte. */
BANYAN_DEVICE uint64_t chunks_at(uint32_t chunk)
{
    return ((uint64_t)chunk * CHUNKS_UNITS * BANYAN_DEVICE_WARP +
            threadIdx.x % BANYAN_DEVICE_WARP) *
           MIXED_UNIT;
}

#define CHUNKS_APART (BANYAN_DEVICE_WARP * MIXED_UNIT)

/* Called by a whole warp. */
BANYAN_DEVICE uint32_t chunks_find_key(const uint4 *units, uint32_t nothing)
{
    for (uint32_t key = 0;; key++) {
        bool bad = false;
        BANYAN_DEVICE_UNROLL
        for (uint32_t u = 0; u < CHUNKS_UNITS; u++)
            bad |= chunks_has(units[u], nothing ^ key);
        if (!__any_sync(0xffffffff, bad))
            return key;
    }
}

/* Store a lane's units of a rank's data. */
template <bool ANY>
BANYAN_DEVICE void chunks_store(const mixed_gather_args *args, uint32_t rank, uint32_t chunk,
                                const uint4 *units)
{
    char *to = args->output + rank * args->apart_bytes;
    BANYAN_DEVICE_UNROLL
    for (uint32_t u = 0; u < CHUNKS_UNITS; u++) {
        uint64_t at = chunks_at(chunk) + u * CHUNKS_APART;
        if (at < args->bytes)
            unit_store<ANY>(to, at, args->bytes, units[u]);
    }
}

/* Push a lane's units; lane 0 then pushes the key. */
template <bool MULTICAST>
BANYAN_DEVICE void chunks_push(const mixed_gather_args *args, char *to, uint32_t chunk,
                               const uint4 *units, uint32_t key)
{
    uint64_t at = chunks_at(chunk);
    BANYAN_DEVICE_UNROLL
    for (uint32_t u = 0; u < CHUNKS_UNITS; u++) {
        if (at + u * CHUNKS_APART < args->bytes)
            unit_push<MULTICAST>(to + at + u * CHUNKS_APART, chunks_turn(units[u], key));
    }
    if (threadIdx.x % BANYAN_DEVICE_WARP == 0)
        unit_push<MULTICAST>(to + args->keys + chunk * MIXED_UNIT, make_uint4(key, key, key, key));
}

template <bool ANY>
BANYAN_DEVICE void chunks_load(const mixed_gather_args *args, uint32_t chunk, uint4 *units)
{
    uint64_t at = chunks_at(chunk);
    BANYAN_DEVICE_UNROLL
    for (uint32_t u = 0; u < CHUNKS_UNITS; u++) {
        if (at + u * CHUNKS_APART < args->bytes)
            units[u] = unit_load<ANY>(args->input, at + u * CHUNKS_APART, args->bytes);
    }
}

template <bool ANY, bool MULTICAST>
BANYAN_DEVICE void chunks_send(const mixed_gather_args *args, const mixed_run *run, uint32_t chunk,
                               const uint4 *units)
{
    uint32_t key = chunks_find_key(units, args->base.nothing);
    if (MULTICAST) {
        chunks_push<true>(args, args->all + run->shift, chunk, units, key);
    } else {
        BANYAN_DEVICE_LOOP
        for (uint32_t i = 0; i < args->send_count; i++)
            chunks_push<false>(args, args->sends[i] + run->shift, chunk, units, key);
        chunks_store<ANY>(args, args->rank, chunk, units);
    }
}

/* A lane's units of one peer. */
struct chunks_arrival {
    uint32_t key;
    uint4 units[CHUNKS_UNITS];

    BANYAN_DEVICE_MEMBER void look(const mixed_gather_args *args, const char *slot, uint32_t chunk)
    {
        key = banyan_device_load_packet(slot + args->keys + chunk * MIXED_UNIT).x;
        BANYAN_DEVICE_UNROLL
        for (uint32_t u = 0; u < CHUNKS_UNITS; u++) {
            if (chunks_at(chunk) + u * CHUNKS_APART < args->bytes)
                units[u] = banyan_device_load_packets(slot + chunks_at(chunk) + u * CHUNKS_APART);
        }
    }
    BANYAN_DEVICE_MEMBER bool has_come(uint32_t nothing) const
    {
        bool all = key != nothing;
        BANYAN_DEVICE_UNROLL
        for (uint32_t u = 0; u < CHUNKS_UNITS; u++)
            all &= !chunks_has(units[u], nothing);
        return all;
    }
};

/* Return the number of slots, in the order of the ranks that send here. */
BANYAN_DEVICE uint32_t chunks_slots(const mixed_gather_args *args)
{
    return args->rank == MIXED_NO_RANK ? args->ranks : args->ranks - 1;
}

BANYAN_DEVICE uint32_t chunks_rank(const mixed_gather_args *args, uint32_t peer)
{
    return peer < args->rank ? peer : peer + 1;
}

/* Receive from slots [first, first + CHUNKS_PEERS). */
template <bool ANY>
BANYAN_DEVICE bool chunks_receive(const mixed_gather_args *args, const mixed_run *run,
                                  uint32_t first, uint32_t chunk)
{
    const char *slots = run->received + first * args->slot_bytes;
    uint32_t peers = chunks_slots(args) - first;
    chunks_arrival arrivals[CHUNKS_PEERS] = {};
    banyan_device_wait wait = {};
    for (;;) {
        uint32_t missing = CHUNKS_PEERS;
        BANYAN_DEVICE_UNROLL
        for (uint32_t k = 0; k < CHUNKS_PEERS; k++) {
            if (k < peers)
                arrivals[k].look(args, slots + k * args->slot_bytes, chunk);
        }
        BANYAN_DEVICE_UNROLL
        for (uint32_t k = 0; k < CHUNKS_PEERS; k++) {
            if (k < peers && !arrivals[k].has_come(args->base.nothing))
                missing = k;
        }
        if (missing == CHUNKS_PEERS)
            break;
        if (!run_wait_on(&args->base, &wait, chunks_rank(args, first + missing)))
            return false;
    }
    BANYAN_DEVICE_UNROLL
    for (uint32_t k = 0; k < CHUNKS_PEERS; k++) {
        BANYAN_DEVICE_UNROLL
        for (uint32_t u = 0; u < CHUNKS_UNITS; u++)
            arrivals[k].units[u] = chunks_turn(arrivals[k].units[u], arrivals[k].key);
        if (k < peers)
            chunks_store<ANY>(args, chunks_rank(args, first + k), chunk, arrivals[k].units);
    }
    return true;
}

/* Called by a whole warp: receive from all ranks. */
template <bool ANY>
BANYAN_DEVICE bool chunks_receive_all(const mixed_gather_args *args, const mixed_run *run,
                                      uint32_t chunk)
{
    bool came = true;
    BANYAN_DEVICE_LOOP
    for (uint32_t first = 0; first < chunks_slots(args) && came; first += CHUNKS_PEERS)
        came = chunks_receive<ANY>(args, run, first, chunk);
    return !__any_sync(0xffffffff, !came);
}

/* At most one chunk for each warp: its data are requested together with the state. */
template <bool ANY, bool MULTICAST> BANYAN_DEVICE void chunks_once(const mixed_gather_args *args)
{
    mixed_run run = {};
    uint4 units[CHUNKS_UNITS] = {};
    uint32_t chunk = run_thread() / BANYAN_DEVICE_WARP;
    run_ask(&args->base, &run);
    chunks_load<ANY>(args, chunk, units);
    run_begin_asked(&args->base, &run);
    if (run.broken)
        return;
    if (chunk < args->chunks)
        chunks_send<ANY, MULTICAST>(args, &run, chunk, units);
    run_count(&args->base, &run);
    run_put_back_all(&args->base, &run);
    if (chunk < args->chunks)
        chunks_receive_all<ANY>(args, &run, chunk);
}

/* A warp that sends a chunk waits for the others' chunk of that number one round later. */
template <bool ANY, bool MULTICAST> BANYAN_DEVICE void chunks(const mixed_gather_args *args)
{
    uint32_t apart = run_threads() / BANYAN_DEVICE_WARP;
    mixed_run run = run_begin(&args->base);
    if (run.broken)
        return;
    BANYAN_DEVICE_LOOP
    for (uint32_t chunk = run_thread() / BANYAN_DEVICE_WARP; chunk < args->chunks + apart;
         chunk += apart) {
        if (chunk < args->chunks) {
            uint4 units[CHUNKS_UNITS] = {};
            chunks_load<ANY>(args, chunk, units);
            chunks_send<ANY, MULTICAST>(args, &run, chunk, units);
        }
        run_put_back(&args->base, &run);
        uint32_t before = chunk - apart; /* in the first round: beyond the last one */
        if (before < args->chunks && !chunks_receive_all<ANY>(args, &run, before))
            return;
    }
    run_count(&args->base, &run);
}

#endif
