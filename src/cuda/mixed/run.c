/* Calls inside a node: the arguments and numbers of threads of their launches. */
#include "cuda/mixed/engine.h"

/* All-gather uses packets up to this size of a rank's data. */
#define PACKETS_MOST (UINT64_C(128) << 10)
#define PACKET_BYTES 8 /* of data */
#define WARP 32
#define UNITS_MOST (UINT64_C(1) << 31)

/* A part of a call, for one launch. */
typedef struct launch_part {
    const cuda_mixed *engine;
    const mixed_call *call;
    const char *input;
    char *output;
    uint64_t whole_bytes; /* of the call's b rows */
    uint64_t bytes;       /* of the part */
    uint64_t units;
    bool scatters; /* every slice of the input has its own ranks */
    bool any;      /* addresses or lengths are not multiples of units */
    bool multicast;
    int ranks, rank, tp, t, d;
} launch_part;

static uint64_t mixed_run_up(uint64_t value, uint64_t multiple)
{
    return (value + multiple - 1) / multiple * multiple;
}

static uint32_t mixed_run_lower(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static uint64_t mixed_run_units_of(uint64_t bytes)
{
    return (bytes + MIXED_UNIT - 1) / MIXED_UNIT;
}

static bool saves_bytes(const mixed_call *call)
{
    return call->mode == BANYAN_MIXED_TWO_SHOT || call->mode == BANYAN_MIXED_TWO_SHOT_MULTICAST;
}

/* Receive slots per rank: one per peer, plus its own with multicast. */
static uint64_t mixed_run_slots_of(const cuda_mixed *engine, bool multicast)
{
    return (uint64_t)engine->ranks - (multicast ? 0 : 1);
}

/* Slots for a piece: for the inputs that are added here, and for others' sums. */
static uint64_t piece_slots(const cuda_mixed *engine, bool multicast)
{
    return mixed_run_slots_of(engine, multicast) + (uint64_t)engine->setup->grid.local_tp - 1;
}

static uint64_t mixed_run_chunks_of(uint64_t bytes)
{
    return (bytes + MIXED_CHUNK - 1) / MIXED_CHUNK;
}

/* Return the size of a slot for one rank's data in chunks, with their keys. */
static uint64_t chunks_slot_bytes(uint64_t bytes)
{
    return mixed_run_up(bytes, MIXED_UNIT) + mixed_run_chunks_of(bytes) * MIXED_UNIT;
}

/* One-shot launches are for short messages: if two-shot modes are available, they carry fewer
 * bytes than those. */
uint64_t mixed_buffer_bytes(const cuda_mixed *engine)
{
    bool multicast = engine->setup->multicast.is_expected;
    uint64_t tp = (uint64_t)engine->setup->grid.local_tp,
             slots = mixed_run_slots_of(engine, multicast);
    if (slots == 0)
        return 0;
    uint64_t piece = mixed_run_up(mixed_run_units_of(engine->most_bytes), tp) / tp * MIXED_UNIT;
    uint64_t bytes = tp > 1 ? piece_slots(engine, multicast) * piece
                            : slots * chunks_slot_bytes(engine->most_bytes);
    uint64_t least = slots * chunks_slot_bytes(PACKETS_MOST) * 2;
    return mixed_run_up(bytes > least ? bytes : least, 4096);
}

/* Return the bytes of b rows that a launch may carry. */
static uint64_t launch_bytes(const cuda_mixed *engine, const mixed_call *call)
{
    uint64_t room = engine->buffer_bytes / MIXED_UNIT, tp = (uint64_t)engine->setup->grid.local_tp;
    uint64_t units = UNITS_MOST, slots = mixed_run_slots_of(engine, mode_is_multicast(call->mode));
    if (slots > 0 && saves_bytes(call))
        units = room / piece_slots(engine, mode_is_multicast(call->mode)) * tp;
    else if (slots > 0)
        units = room / slots;
    if (slots > 0 && call->op == BANYAN_MIXED_ALLGATHER &&
        chunks_slot_bytes(engine->most_bytes) > units * MIXED_UNIT)
        units -= units / (MIXED_CHUNK / MIXED_UNIT / 2); /* space for keys */
    uint64_t most = engine->most_bytes / MIXED_UNIT;
    units = units < most ? units : most;
    return (units < UNITS_MOST ? units : UNITS_MOST) * MIXED_UNIT;
}

/* All threads go through `units`, with `steps` loads and stores each. A thread block is added when
 * each of its threads has min_num_steps of them; at the largest number of blocks, the blocks
 * grow. */
static launch_shape mixed_run_choose_shape(const cuda_mixed *engine, mixed_kernel kernel,
                                           uint64_t units, uint64_t steps)
{
    uint32_t threads = engine->least_threads;
    uint64_t least = (uint64_t)engine->setup->min_num_steps;
    uint64_t blocks = (units + threads - 1) / threads;
    uint64_t worth = units * steps / (threads * (least > 0 ? least : 1));
    blocks = blocks < worth ? blocks : worth > 0 ? worth : 1;
    uint32_t most =
        mixed_run_lower(engine->most_blocks, mixed_blocks_at_once(engine, kernel, threads));
    if (blocks > most)
        blocks = most;
    while (blocks == most && blocks * threads < units && threads * 2 <= engine->most_threads &&
           mixed_blocks_at_once(engine, kernel, threads * 2) >= blocks)
        threads *= 2;
    return mixed_shape_of(engine, kernel, (uint32_t)blocks, threads);
}

static mixed_base base_of(const launch_part *p, uint64_t used)
{
    const cuda_mixed *engine = p->engine;
    return (mixed_base){
        .states = engine->states,
        .state_count = engine->most_blocks,
        .used = (uint32_t)used,
        .received = engine->parts[engine->rank],
        .buffer_bytes = engine->buffer_bytes,
        .broken = engine->broken,
        .reports = engine->reports,
        .timeout_ns = engine->setup->timeout_ns,
        .call = mixed_report_own(p->call->op, p->call->mode),
        .nothing = engine->nothing,
    };
}

/* Return the index of `from`'s data among the slots of all ranks except `at`. */
static uint64_t mixed_run_slot(int from, int at)
{
    return (uint64_t)(from < at ? from : from - 1);
}

/* Return one of four consecutive kernels. */
static mixed_kernel mixed_run_variant(const launch_part *p, mixed_kernel first)
{
    return (mixed_kernel)((int)first + (p->any ? 1 : 0) + (p->multicast ? 2 : 0));
}

/* The threads go through `units` in rounds. */
static banyan_status launch_rounds(const launch_part *p, mixed_kernel kernel, launch_shape by,
                                   uint64_t units, mixed_base *args, CUstream stream)
{
    uint64_t threads = (uint64_t)by.blocks * by.threads, rounds = (units + threads - 1) / threads;
    args->is_early = by.early;
    args->share = rounds > 1 ? (uint32_t)((UINT64_C(1) << 32) / rounds) + 1 : UINT32_MAX;
    return launch_kernel(p->engine->device, p->engine->kernels[kernel], by, args, stream);
}

/* Launch kernel `once` if there are enough threads. */
static banyan_status launch_units(const launch_part *p, mixed_kernel once, mixed_kernel more,
                                  uint64_t units, uint64_t steps, mixed_base *args, CUstream stream)
{
    mixed_kernel kernel = mixed_run_variant(p, once);
    launch_shape by = mixed_run_choose_shape(p->engine, kernel, units, steps);
    if ((uint64_t)by.blocks * by.threads < units) {
        kernel = mixed_run_variant(p, more);
        by = mixed_run_choose_shape(p->engine, kernel, units, steps);
    }
    return launch_rounds(p, kernel, by, units, args, stream);
}

/* Return the part of this rank's input for data-parallel rank d. */
static const char *taken_by(const launch_part *p, int d)
{
    return p->input + (p->scatters ? (uint64_t)d * p->whole_bytes : 0);
}

/* True if a multicast reaches the peer. When scattering, only a tensor-parallel group gets equal
 * data, and only its members may use its address: ranks of other groups receive theirs one by one.
 * A multicast to the whole node would give each rank dp times the data that it needs. */
static bool mixed_run_is_cast_to(const launch_part *p, int peer)
{
    return p->multicast && (!p->scatters || peer / p->tp == p->d);
}

static void fill_waits_sends(const launch_part *p, mixed_waits_args *args)
{
    const mixed_multicast *all = &p->engine->setup->multicast;
    uint64_t slot_bytes = p->units * MIXED_UNIT;
    if (p->multicast)
        args->sends[args->send_count++] = (mixed_send){
            .to = (p->scatters ? all->tp : all->node) + (uint64_t)p->rank * slot_bytes,
            .from = taken_by(p, p->d),
            .bytes = p->bytes,
        };
    for (int k = 1; k < p->ranks; k++) {
        int peer = (p->rank + k) % p->ranks;
        uint64_t place = p->multicast ? (uint64_t)p->rank : mixed_run_slot(p->rank, peer);
        if (mixed_run_is_cast_to(p, peer))
            continue;
        args->sends[args->send_count++] = (mixed_send){
            .to = p->engine->parts[peer] + place * slot_bytes,
            .from = taken_by(p, peer / p->tp),
            .bytes = p->bytes,
        };
    }
}

static banyan_status run_waits(const launch_part *p, CUstream stream)
{
    uint64_t slots = mixed_run_slots_of(p->engine, p->multicast);
    mixed_waits_args args = {
        .base = base_of(p, slots * p->units),
        .own = taken_by(p, p->d),
        .output = p->output,
        .bytes = p->bytes,
        .apart_bytes = p->whole_bytes,
        .units = (uint32_t)p->units,
        .ranks = (uint16_t)p->ranks,
        .rank = p->multicast ? MIXED_NO_RANK : (uint16_t)p->rank,
        .fold = (uint16_t)(p->scatters ? p->ranks : p->tp),
        .sends_are_equal = !p->scatters,
    };
    fill_waits_sends(p, &args);
    uint64_t loads = (p->scatters ? args.send_count : 1) + 1 + slots;
    uint64_t stores = args.send_count + (uint64_t)(p->ranks / args.fold);
    return launch_units(p, MIXED_WAITS_ONCE, MIXED_WAITS, p->units, loads + stores, &args.base,
                        stream);
}

/* A piece of the part for each tensor-parallel rank; the last ones are shorter. */
typedef struct pieces {
    uint64_t bytes; /* of the longest piece, in whole units */
    uint64_t part_bytes;
} pieces;

static uint64_t piece_at(const pieces *of, int t)
{
    uint64_t at = (uint64_t)t * of->bytes;
    return at < of->part_bytes ? at : of->part_bytes;
}

static uint64_t mixed_run_piece_bytes(const pieces *of, int t)
{
    return piece_at(of, t + 1) - piece_at(of, t);
}

static void fill_sends(const launch_part *p, const pieces *of, mixed_bytes_args *args)
{
    int count = p->scatters ? p->ranks : p->tp, me = p->scatters ? p->rank : p->t;
    for (int k = 1; k < count; k++) {
        int member = (me + k) % count, peer = p->scatters ? member : member + p->d * p->tp;
        int piece = peer % p->tp;
        args->sends[args->send_count++] = (mixed_send){
            .to = p->engine->parts[peer] + mixed_run_slot(me, member) * of->bytes,
            .from = p->input + piece_at(of, piece) +
                    (p->scatters ? (uint64_t)(peer / p->tp) * p->whole_bytes : 0),
            .bytes = mixed_run_piece_bytes(of, piece),
        };
    }
    args->source_count = (uint16_t)count;
    args->own_source = (uint16_t)me;
    for (int i = 0; i < count; i++)
        args->source_ranks[i] = (uint16_t)(p->scatters ? i : i + p->d * p->tp);
}

/* Sums go to the ranks with that output, into slots after those of the pieces. */
static void fill_shares(const launch_part *p, const pieces *of, mixed_bytes_args *args)
{
    int count = p->scatters ? p->tp : p->ranks, me = p->scatters ? p->t : p->rank;
    uint64_t behind = (uint64_t)(args->source_count - 1) * of->bytes;
    for (int k = 1; k < count && !p->multicast; k++) {
        int to = (me + k) % count, to_rank = p->scatters ? to + p->d * p->tp : to;
        args->shares[args->share_count++] =
            p->engine->parts[to_rank] + behind + mixed_run_slot(me, to) * of->bytes;
    }
    if (p->multicast) {
        const mixed_multicast *all = &p->engine->setup->multicast;
        args->shares[args->share_count++] =
            (p->scatters ? all->tp : all->node) + behind + (uint64_t)me * of->bytes;
    }
    for (int k = p->multicast ? 0 : 1; k < count; k++) {
        int from = (me + count - k) % count, from_rank = p->scatters ? from + p->d * p->tp : from;
        int piece = from_rank % p->tp;
        args->arrivals[args->arrival_count++] = (mixed_arrival){
            .offset =
                behind + (p->multicast ? (uint64_t)from : mixed_run_slot(from, me)) * of->bytes,
            .to = p->output + piece_at(of, piece) +
                  (p->scatters ? 0 : (uint64_t)(from_rank / p->tp) * p->whole_bytes),
            .bytes = mixed_run_piece_bytes(of, piece),
            .rank = (uint32_t)from_rank,
        };
    }
}

static banyan_status run_bytes(const launch_part *p, CUstream stream)
{
    uint64_t tp = (uint64_t)p->tp, d = (uint64_t)p->d;
    pieces of = {.bytes = mixed_run_up(p->units, tp) / tp * MIXED_UNIT, .part_bytes = p->bytes};
    uint64_t units = of.bytes / MIXED_UNIT, slots = piece_slots(p->engine, p->multicast);
    mixed_bytes_args args = {
        .base = base_of(p, slots * units),
        .own = p->input + piece_at(&of, p->t) + (p->scatters ? d * p->whole_bytes : 0),
        .output = p->output + piece_at(&of, p->t) + (p->scatters ? 0 : d * p->whole_bytes),
        .bytes = mixed_run_piece_bytes(&of, p->t),
        .units = (uint32_t)units,
        .slot_bytes = of.bytes,
    };
    fill_sends(p, &of, &args);
    fill_shares(p, &of, &args);
    uint64_t moved = (uint64_t)args.send_count + args.arrival_count;
    uint64_t loads = moved + args.source_count, stores = moved + args.share_count + 1;
    return launch_units(p, MIXED_BYTES_ONCE, MIXED_BYTES, units, loads + stores, &args.base,
                        stream);
}

/* With multicast, every rank receives at this rank's own slot. */
static void fill_gather_sends(const launch_part *p, mixed_gather_args *args)
{
    if (p->multicast)
        args->all = p->engine->setup->multicast.node + (uint64_t)p->rank * args->slot_bytes;
    for (int k = 1; k < p->ranks && !p->multicast; k++) {
        int peer = (p->rank + k) % p->ranks;
        args->sends[args->send_count++] =
            p->engine->parts[peer] + mixed_run_slot(p->rank, peer) * args->slot_bytes;
    }
}

static banyan_status run_gather(const launch_part *p, CUstream stream)
{
    bool short_one = p->bytes <= PACKETS_MOST;
    uint64_t slot_bytes =
        short_one ? mixed_run_up(2 * p->bytes, 2 * MIXED_UNIT) : chunks_slot_bytes(p->bytes);
    uint64_t slots = mixed_run_slots_of(p->engine, p->multicast);
    mixed_gather_args args = {
        .base = base_of(p, slots * slot_bytes / MIXED_UNIT),
        .input = p->input,
        .output = p->output,
        .bytes = p->bytes,
        .apart_bytes = p->whole_bytes,
        .slot_bytes = slot_bytes,
        .keys = mixed_run_up(p->bytes, MIXED_UNIT),
        .chunks = (uint32_t)mixed_run_chunks_of(p->bytes),
        .ranks = (uint16_t)p->ranks,
        .rank = p->multicast ? MIXED_NO_RANK : (uint16_t)p->rank,
    };
    fill_gather_sends(p, &args);
    uint64_t loads = 1 + slots, stores = slots + (p->multicast ? 1 : (uint64_t)args.send_count + 1);
    if (!short_one)
        return launch_units(p, MIXED_CHUNKS_ONCE, MIXED_CHUNKS,
                            mixed_run_chunks_of(p->bytes) * WARP, loads + stores, &args.base,
                            stream);
    uint64_t packets = (p->bytes + PACKET_BYTES - 1) / PACKET_BYTES;
    mixed_kernel kernel = p->multicast ? MIXED_PACKETS_MULTICAST : MIXED_PACKETS;
    launch_shape by = mixed_run_choose_shape(p->engine, kernel, packets, loads + stores);
    return launch_rounds(p, kernel, by, packets, &args.base, stream);
}

static bool mixed_run_is_any(const launch_part *p)
{
    uint64_t together = (uintptr_t)p->input | (uintptr_t)p->output | p->bytes;
    if (p->engine->setup->grid.local_dp > 1)
        together |= p->whole_bytes;
    return together % MIXED_UNIT != 0;
}

static banyan_status mixed_run_part(launch_part *p, CUstream stream)
{
    p->units = mixed_run_units_of(p->bytes);
    p->any = mixed_run_is_any(p);
    if (p->call->op == BANYAN_MIXED_ALLGATHER)
        return run_gather(p, stream);
    return saves_bytes(p->call) ? run_bytes(p, stream) : run_waits(p, stream);
}

banyan_status mixed_run_on_node(const cuda_mixed *engine, const mixed_call *call, CUstream stream)
{
    const banyan_mixed_grid *grid = &engine->setup->grid;
    uint64_t bytes = call->elems * engine->elem_bytes, most = launch_bytes(engine, call);
    launch_part p = {
        .engine = engine,
        .call = call,
        .whole_bytes = bytes,
        .scatters = call->op == BANYAN_MIXED_REDUCESCATTER ||
                    call->op == BANYAN_MIXED_REDUCESCATTER_ALLREDUCE,
        .ranks = engine->ranks,
        .rank = engine->rank,
        .tp = grid->local_tp,
        .t = grid->local_tp_rank,
        .d = grid->local_dp_rank,
    };
    /* No other rank gets data that is scattered among groups of one, so there is no multicast. */
    p.multicast = mode_is_multicast(call->mode) && (!p.scatters || p.tp > 1);
    for (uint64_t at = 0; at < bytes; at += p.bytes) {
        p.bytes = bytes - at < most ? bytes - at : most;
        p.input = (const char *)call->input + at;
        p.output = (char *)call->output + at;
        RETURN_IF_FAILED(mixed_run_part(&p, stream));
    }
    return BANYAN_OK;
}

banyan_status mixed_clear(cuda_mixed *engine, char *at, uint64_t bytes)
{
    mixed_clear_args args = {.at = at, .bytes = bytes, .nothing = engine->nothing};
    launch_shape by = mixed_run_choose_shape(engine, MIXED_CLEAR, bytes / MIXED_UNIT, 1);
    by.early = false;
    return launch_kernel(engine->device, engine->kernels[MIXED_CLEAR], by, &args, engine->stream);
}
