/* Where chunks lie, against a reference that knows every byte's place by counting. */
#include "support/test.h"

#include <inttypes.h>

#include "plan/geometry.h"

/* ---- plans made for the tests ---- */

typedef struct shape {
    banyan_collective_kind kind;
    int ranks;
    uint64_t factor, scratch, alignment; /* chunks a block; scratch chunks; bytes */
} shape;

static const banyan_collective_kind kinds[] = {
    BANYAN_CUSTOM,   BANYAN_ALLREDUCE, BANYAN_ALLGATHER, BANYAN_REDUCESCATTER,
    BANYAN_ALLTOALL, BANYAN_SENDRECV,  BANYAN_BROADCAST, BANYAN_REDUCE,
};

static uint64_t blocks_of(const shape *of, plan_buffer buffer)
{
    bool many = of->kind == BANYAN_ALLTOALL ||
                (of->kind == BANYAN_ALLGATHER && buffer == PLAN_OUTPUT) ||
                (of->kind == BANYAN_REDUCESCATTER && buffer == PLAN_INPUT);
    return many ? (uint64_t)of->ranks : 1;
}

static uint64_t chunks_of(const shape *of, plan_buffer buffer)
{
    return buffer == PLAN_SCRATCH ? of->scratch : of->factor * blocks_of(of, buffer);
}

/* Rank 0 has a remote buffer of every kind of rank 1; a single thread block with one operation. */
static banyan_plan *make_plan(const shape *of)
{
    banyan_plan *plan = plan_create(of->ranks);
    CHECK(plan);
    plan->name = "geometry";
    plan->collective = of->kind;
    plan->collective_name = banyan_collective_name(of->kind);
    plan->buffer_alignment = of->alignment;
    for (int r = 0; r < of->ranks; r++) {
        plan_rank *rank = &plan->ranks[r];
        for (int b = 0; b < PLAN_BUFFERS; b++)
            rank->chunks[b] = chunks_of(of, (plan_buffer)b);
        rank->block_count = 1;
        rank->blocks = plan_take(plan, 1, sizeof *rank->blocks);
        rank->remote_buffer_count = PLAN_BUFFERS;
        rank->remote_buffers = plan_take(plan, PLAN_BUFFERS, sizeof *rank->remote_buffers);
        plan_thread_block *block = rank->blocks;
        block->remote_buffers[PLAN_MEMORY] = plan_take(plan, PLAN_BUFFERS, sizeof(uint32_t));
        block->remote_buffer_count[PLAN_MEMORY] = PLAN_BUFFERS;
        for (uint32_t b = 0; b < PLAN_BUFFERS; b++) {
            rank->remote_buffers[b] =
                (plan_remote_buffer){(r + 1) % of->ranks, (plan_buffer)b, 1u << PLAN_MEMORY};
            block->remote_buffers[PLAN_MEMORY][b] = b;
        }
    }
    return plan;
}

static plan_op *add_op(banyan_plan *plan, plan_op_kind kind, uint32_t sources,
                       uint32_t destinations)
{
    plan_thread_block *block = &plan->ranks[0].blocks[0];
    block->ops = plan_take(plan, 1, sizeof *block->ops);
    block->op_count = 1;
    plan_op *op = block->ops;
    *op = (plan_op){.kind = kind, .source_count = sources, .destination_count = destinations};
    op->sources = plan_take(plan, sources, sizeof *op->sources);
    op->destinations = plan_take(plan, destinations, sizeof *op->destinations);
    return op;
}

/* Put the only operation into a loop. */
static const plan_op *add_loop(banyan_plan *plan, uint64_t unit_bytes, uint64_t chunks)
{
    plan_thread_block *block = &plan->ranks[0].blocks[0];
    plan_op *loop = plan_take(plan, 1, sizeof *loop);
    *loop = (plan_op){.kind = PLAN_PIPELINE, .unit_bytes = unit_bytes, .loop_chunks = chunks};
    loop->ops = block->ops;
    loop->op_count = 1;
    block->ops = loop;
    return loop;
}

static plan_operand local(plan_buffer buffer, uint64_t index, uint64_t size)
{
    return (plan_operand){.place = PLAN_LOCAL, .buffer = buffer, .index = index, .size = size};
}

/* ---- the reference ---- */

typedef struct layout {
    uint64_t stride, block, factor;
    uint64_t apart; /* scratch chunks, whose stride may be that of longer messages */
} layout;

static layout layout_of(const shape *of, uint64_t message)
{
    layout made = {.factor = of->factor};
    if (of->kind == BANYAN_CUSTOM) {
        made.block = message / of->factor;
        made.factor = 1;
    } else {
        made.block = message / blocks_of(of, PLAN_INPUT);
    }
    while (made.stride * made.factor < made.block)
        made.stride += of->alignment;
    return made;
}

/* The bytes that a chunk has, from where on in its buffer. */
static uint64_t chunk_bytes(const layout *of, plan_buffer buffer, uint64_t chunk, uint64_t *start)
{
    if (buffer == PLAN_SCRATCH) {
        *start = chunk * of->apart;
        return of->stride;
    }
    uint64_t block = chunk / of->factor, begin = chunk % of->factor * of->stride;
    uint64_t end = begin + of->stride;
    begin = begin < of->block ? begin : of->block;
    end = end < of->block ? end : of->block;
    *start = block * of->block + begin;
    return end - begin;
}

/* ---- what the cut gives, byte by byte ---- */

#define MOST_OPERANDS 6

typedef struct byte_seen {
    uint32_t times, member;
    uint64_t iteration;
    uint64_t offsets[MOST_OPERANDS];
} byte_seen;

/* Positions are those of the first operand that is never clipped in the test: chunk × S + byte. */
typedef struct seen {
    byte_seen *bytes;
    uint64_t count;
    uint32_t operands, key; /* key: an operand in scratch, whose offset tells the position */
    uint64_t key_start;     /* where that begins */
    const layout *where;
    uint32_t member;
    uint64_t iteration;
    uint64_t pieces, ascending;
} seen;

static banyan_status note_piece(void *context, const plan_piece *piece)
{
    seen *all = context;
    CHECK(piece->bytes > 0);
    uint64_t offset = piece->offsets[all->key] - all->key_start;
    uint64_t first = offset / all->where->apart * all->where->stride + offset % all->where->apart;
    CHECK(first >= all->ascending && first + piece->bytes <= all->count,
          "bytes %" PRIu64 "+%" PRIu64, first, piece->bytes);
    all->ascending = first + piece->bytes;
    all->pieces++;
    for (uint64_t i = 0; i < piece->bytes; i++) {
        byte_seen *byte = &all->bytes[first + i];
        byte->times++;
        byte->member = all->member;
        byte->iteration = all->iteration;
        for (uint32_t k = 0; k < all->operands; k++)
            byte->offsets[k] = piece->offsets[k] + i;
    }
    return BANYAN_OK;
}

static const plan_operand *operand_at(const plan_op *op, uint32_t i)
{
    return i < op->source_count ? &op->sources[i] : &op->destinations[i - op->source_count];
}

typedef banyan_status (*cut_fn)(const plan_geometry *geometry, const banyan_plan *plan, int rank,
                                const plan_thread_block *block, const plan_op *op,
                                const plan_op *loop, uint64_t iteration, plan_piece_visit visit,
                                void *context);

static void see(const banyan_plan *plan, const plan_geometry *geometry, plan_op *op,
                const plan_op *loop, cut_fn cut, seen *all)
{
    const plan_thread_block *block = &plan->ranks[0].blocks[0];
    uint64_t iterations = loop ? plan_geometry_iterations(geometry, loop) : 1;
    uint32_t members = op->group_size > 0 ? op->group_size : 1;
    for (all->member = 0; all->member < members; all->member++) {
        op->group_index = all->member;
        for (all->iteration = 0; all->iteration < iterations; all->iteration++) {
            all->ascending = 0;
            CHECK_OK(cut(geometry, plan, 0, block, op, loop, all->iteration, note_piece, all));
        }
    }
}

/* Whose a byte is: the first members have one unit of the alignment more. */
static uint32_t member_of(uint64_t position, uint64_t total, uint64_t alignment, uint32_t members,
                          uint64_t *begin)
{
    uint64_t units = total / alignment;
    *begin = 0;
    for (uint32_t m = 0; m < members; m++) {
        uint64_t bytes = (units / members + (m < units % members)) * alignment;
        if (position < *begin + bytes)
            return m;
        *begin += bytes;
    }
    CHECK(false, "nobody has byte %" PRIu64, position);
    return 0;
}

/* ---- random operations ---- */

static const plan_op_kind cut_kinds[] = {PLAN_COPY, PLAN_COPY_PACKET, PLAN_REDUCE,
                                         PLAN_REDUCE_PACKET, PLAN_REDUCE_SEND_PACKET};

/* All operands of as many chunks; the last one is in scratch. */
static plan_op *random_op(random_state *random, const shape *of, banyan_plan *plan)
{
    plan_op_kind kind = cut_kinds[random_between(random, 0, 4)];
    bool reduces = plan_op_reduces(kind);
    uint32_t sources = reduces ? (uint32_t)random_between(random, 2, 4) : 1;
    uint32_t destinations = kind == PLAN_REDUCE_SEND_PACKET ? 2 : 1;
    plan_op *op = add_op(plan, kind, sources, destinations);
    uint64_t least = of->scratch;
    for (int b = PLAN_INPUT; b <= PLAN_OUTPUT; b++)
        least = chunks_of(of, (plan_buffer)b) < least ? chunks_of(of, (plan_buffer)b) : least;
    uint64_t size = (uint64_t)random_between(random, 1, (int64_t)least);
    for (uint32_t i = 0; i < sources + destinations; i++) {
        bool source = i < sources;
        uint32_t k = source ? i : i - sources;
        bool packets = source ? plan_source_is_packets(op, k) : plan_destination_is_packets(op, k);
        bool last = i == sources + destinations - 1;
        plan_buffer buffer =
            packets || last ? PLAN_SCRATCH : (plan_buffer)random_between(random, 0, 2);
        uint64_t index =
            (uint64_t)random_between(random, 0, (int64_t)(chunks_of(of, buffer) - size));
        plan_operand *operand = source ? &op->sources[k] : &op->destinations[k];
        *operand = local(buffer, index, size);
    }
    op->group_size = random_between(random, 0, 2) == 0 ? (uint32_t)random_between(random, 1, 5) : 0;
    return op;
}

static shape random_shape(random_state *random)
{
    return (shape){
        .kind = kinds[random_between(random, 0, 7)],
        .ranks = (int)random_between(random, 2, 4),
        .factor = (uint64_t)random_between(random, 1, 5),
        .scratch = (uint64_t)random_between(random, 1, 6),
        .alignment = UINT64_C(1) << random_between(random, 0, 5),
    };
}

static void check_bytes(const shape *of, const layout *where, const plan_op *op, const seen *data,
                        const seen *pads, const plan_op *loop, uint64_t data_base)
{
    uint64_t size = op->sources[0].size, total = size * where->stride;
    uint32_t members = op->group_size > 0 ? op->group_size : 1;
    for (uint64_t position = 0; position < total; position++) {
        uint64_t within = position % where->stride, begin, start;
        uint32_t member = member_of(position, total, of->alignment, members, &begin);
        uint64_t iteration = loop ? (position - begin) / loop->unit_bytes : 0;
        bool there = true;
        for (uint32_t i = 0; i < data->operands; i++) {
            const plan_operand *operand = operand_at(op, i);
            there &= within < chunk_bytes(where, operand->buffer,
                                          operand->index + position / where->stride, &start);
        }
        const byte_seen *byte = there ? &data->bytes[position] : &pads->bytes[position];
        bool pads_it = plan_op_writes_packets(op->kind);
        CHECK(data->bytes[position].times == there, "byte %" PRIu64 ": %u times", position,
              data->bytes[position].times);
        CHECK(pads->bytes[position].times == (!there && pads_it), "byte %" PRIu64 ": %u pads",
              position, pads->bytes[position].times);
        if (byte->times == 0)
            continue;
        CHECK(byte->member == member && byte->iteration == iteration,
              "byte %" PRIu64 ": member %u, iteration %" PRIu64, position, byte->member,
              byte->iteration);
        for (uint32_t i = 0; i < data->operands; i++) {
            const plan_operand *operand = operand_at(op, i);
            bool source = i < op->source_count;
            bool packets = source ? plan_source_is_packets(op, i)
                                  : plan_destination_is_packets(op, i - op->source_count);
            chunk_bytes(where, operand->buffer, operand->index + position / where->stride, &start);
            uint64_t base = operand->buffer == PLAN_SCRATCH && !packets ? data_base : 0;
            if (there || packets)
                CHECK(byte->offsets[i] == base + start + within,
                      "byte %" PRIu64 ", operand %u: at %" PRIu64 ", not %" PRIu64, position, i,
                      byte->offsets[i], base + start + within);
        }
    }
}

static void try_random(random_state *random)
{
    shape of = random_shape(random);
    banyan_plan *plan = make_plan(&of);
    plan_op *op = random_op(random, &of, plan);
    plan_geometry geometry;
    uint64_t blocks = of.kind == BANYAN_CUSTOM ? of.factor : blocks_of(&of, PLAN_INPUT);
    uint64_t message = blocks * (uint64_t)random_between(random, 0, 300);
    const plan_op *loop = NULL;
    if (random_between(random, 0, 1)) {
        loop = add_loop(plan, (uint64_t)random_between(random, 1, 200), op->sources[0].size);
        op = loop->ops;
    }
    CHECK_OK(plan_geometry_make(plan, message, 1, &geometry));
    layout where = layout_of(&of, message);
    CHECK(geometry.chunk_bytes == where.stride && geometry.scratch_stride == where.stride);
    geometry.scratch_stride += of.alignment * (uint64_t)(random_between(random, 0, 1) * 3);
    where.apart = geometry.scratch_stride;
    uint64_t total = op->sources[0].size * where.stride;
    const plan_operand *last = &op->destinations[op->destination_count - 1];
    bool packets = plan_op_reads_packets(op->kind) || plan_op_writes_packets(op->kind);
    uint64_t data_base = packets ? 2 * of.scratch * where.apart : 0;
    bool last_packets = plan_destination_is_packets(op, op->destination_count - 1);
    seen data = {
        .where = &where, .count = total, .operands = op->source_count + op->destination_count};
    data.key = data.operands - 1;
    data.key_start = last->index * where.apart + (last_packets ? 0 : data_base);
    data.bytes = calloc(total + 1, sizeof *data.bytes);
    seen pads = data;
    pads.bytes = calloc(total + 1, sizeof *pads.bytes);
    see(plan, &geometry, op, loop, plan_geometry_cut, &data);
    see(plan, &geometry, op, loop, plan_geometry_pad, &pads);
    check_bytes(&of, &where, op, &data, &pads, loop, data_base);
    free(data.bytes);
    free(pads.bytes);
    banyan_plan_destroy(plan);
}

static void every_byte_is_moved_once_to_where_its_chunk_lies(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    for (int i = 0; i < 3000; i++)
        try_random(&random);
}

/* ---- examples, by hand ---- */

typedef struct pieces {
    uint64_t list[16][3]; /* bytes, source, destination */
    uint32_t count;
} pieces;

static banyan_status take_piece(void *context, const plan_piece *piece)
{
    pieces *all = context;
    CHECK(all->count < 16);
    uint64_t *to = all->list[all->count++];
    to[0] = piece->bytes;
    to[1] = piece->offsets[0];
    to[2] = piece->offsets[1];
    return BANYAN_OK;
}

static pieces cut(const banyan_plan *plan, const plan_geometry *geometry, const plan_op *op,
                  const plan_op *loop, uint64_t iteration)
{
    pieces all = {.count = 0};
    CHECK_OK(plan_geometry_cut(geometry, plan, 0, plan->ranks[0].blocks, op, loop, iteration,
                               take_piece, &all));
    return all;
}

static void check_piece(const pieces *all, uint32_t i, uint64_t bytes, uint64_t source,
                        uint64_t destination)
{
    CHECK(i < all->count && all->list[i][0] == bytes && all->list[i][1] == source &&
          all->list[i][2] == destination);
}

/* 100 bytes of f32 in 3 chunks aligned to 16 bytes: 48, 48 and 4. */
static void a_message_that_does_not_divide_is_clipped_at_its_end(void **state)
{
    (void)state;
    shape of = {BANYAN_ALLREDUCE, 2, 3, 3, 16};
    banyan_plan *plan = make_plan(&of);
    plan_op *op = add_op(plan, PLAN_COPY, 1, 1);
    op->sources[0] = local(PLAN_INPUT, 1, 2);
    op->destinations[0] = local(PLAN_SCRATCH, 0, 2);
    plan_geometry geometry;
    CHECK_OK(plan_geometry_make(plan, 100, 4, &geometry));
    CHECK(geometry.chunk_bytes == 48);
    pieces all = cut(plan, &geometry, op, NULL, 0);
    CHECK(all.count == 1);
    check_piece(&all, 0, 52, 48, 0);
    banyan_plan_destroy(plan);
}

/* Two blocks of 40 bytes each, of chunks of 32 and 8. */
static void buffers_of_a_block_a_rank_are_cut_block_by_block(void **state)
{
    (void)state;
    shape of = {BANYAN_ALLGATHER, 2, 2, 4, 16};
    banyan_plan *plan = make_plan(&of);
    plan_op *op = add_op(plan, PLAN_COPY, 1, 1);
    op->sources[0] = local(PLAN_OUTPUT, 0, 4);
    op->destinations[0] = local(PLAN_SCRATCH, 0, 4);
    plan_geometry geometry;
    CHECK_OK(plan_geometry_make(plan, 40, 4, &geometry));
    CHECK(plan_geometry_bytes(&geometry, plan, 0, PLAN_OUTPUT) == 80);
    pieces all = cut(plan, &geometry, op, NULL, 0);
    CHECK(all.count == 2);
    check_piece(&all, 0, 40, 0, 0);
    check_piece(&all, 1, 40, 40, 64);
    banyan_plan_destroy(plan);
}

static void an_empty_message_has_no_pieces(void **state)
{
    (void)state;
    shape of = {BANYAN_ALLREDUCE, 2, 3, 3, 16};
    banyan_plan *plan = make_plan(&of);
    plan_op *op = add_op(plan, PLAN_COPY, 1, 1);
    op->sources[0] = local(PLAN_INPUT, 0, 3);
    op->destinations[0] = local(PLAN_SCRATCH, 0, 3);
    const plan_op *loop = add_loop(plan, 64, 3);
    plan_geometry geometry;
    CHECK_OK(plan_geometry_make(plan, 0, 4, &geometry));
    CHECK(plan_geometry_iterations(&geometry, loop) == 0);
    pieces all = cut(plan, &geometry, op, NULL, 0);
    CHECK(all.count == 0);
    banyan_plan_destroy(plan);
}

/* Chunks of 128 bytes in 2 × 64 bytes of scratch, in units of 32. */
static void reused_scratch_wraps_around(void **state)
{
    (void)state;
    shape of = {BANYAN_ALLREDUCE, 2, 2, 2, 16};
    banyan_plan *plan = make_plan(&of);
    plan->reuse_resources = true;
    plan->reused_scratch_bytes = 128;
    plan_op *op = add_op(plan, PLAN_COPY, 1, 1);
    op->sources[0] = local(PLAN_INPUT, 1, 1);
    op->destinations[0] = local(PLAN_SCRATCH, 1, 1);
    const plan_op *loop = add_loop(plan, 32, 1);
    op = loop->ops;
    plan_geometry geometry;
    CHECK_OK(plan_geometry_make(plan, 256, 4, &geometry));
    CHECK(geometry.scratch_stride == 64 && geometry.buffers[PLAN_SCRATCH].bytes == 128);
    const uint64_t places[] = {64, 96, 64, 96};
    for (uint64_t i = 0; i < 4; i++) {
        pieces all = cut(plan, &geometry, op, loop, i);
        CHECK(all.count == 1);
        check_piece(&all, 0, 32, 128 + 32 * i, places[i]);
    }
    banyan_plan_destroy(plan);
}

/* Members of a group wrap around in shares of their own, whatever iteration they are in. */
static void shares_of_reused_scratch_do_not_overlap(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    for (int n = 0; n < 200; n++) {
        shape of = {BANYAN_ALLREDUCE, 2, 1, 1, 16};
        banyan_plan *plan = make_plan(&of);
        uint32_t members = (uint32_t)random_between(&random, 2, 4);
        uint64_t scratch = 16 * (uint64_t)random_between(&random, 2 * members, 20);
        uint64_t message = scratch + 16 * (uint64_t)random_between(&random, 1, 50);
        plan->reuse_resources = true;
        plan->reused_scratch_bytes = scratch;
        plan_op *op = add_op(plan, PLAN_COPY, 1, 1);
        op->sources[0] = local(PLAN_INPUT, 0, 1);
        op->destinations[0] = local(PLAN_SCRATCH, 0, 1);
        op->group_size = members;
        const plan_op *loop = add_loop(plan, 16, 1);
        op = loop->ops;
        plan_geometry geometry;
        CHECK_OK(plan_geometry_make(plan, message, 4, &geometry));
        uint32_t owner[512] = {0};
        for (uint32_t m = 0; m < members; m++) {
            op->group_index = m;
            for (uint64_t i = 0; i < plan_geometry_iterations(&geometry, loop); i++) {
                pieces all = cut(plan, &geometry, op, loop, i);
                for (uint32_t k = 0; k < all.count; k++) {
                    CHECK(all.list[k][2] + all.list[k][0] <= scratch);
                    for (uint64_t byte = 0; byte < all.list[k][0]; byte++) {
                        uint32_t *of_byte = &owner[all.list[k][2] + byte];
                        CHECK(*of_byte == 0 || *of_byte == m + 1);
                        *of_byte = m + 1;
                    }
                }
            }
        }
        banyan_plan_destroy(plan);
    }
}

/* Scratch that was taken for longer messages keeps its places. */
static void scratch_of_a_longer_message_keeps_its_stride(void **state)
{
    (void)state;
    shape of = {BANYAN_ALLREDUCE, 2, 2, 2, 16};
    banyan_plan *plan = make_plan(&of);
    plan_op *op = add_op(plan, PLAN_COPY, 1, 1);
    op->sources[0] = local(PLAN_INPUT, 0, 2);
    op->destinations[0] = local(PLAN_SCRATCH, 0, 2);
    plan_geometry largest, geometry;
    CHECK_OK(plan_geometry_largest(plan, 1000, &largest));
    CHECK_OK(plan_geometry_make(plan, 64, 4, &geometry));
    geometry.scratch_stride = largest.scratch_stride;
    pieces all = cut(plan, &geometry, op, NULL, 0);
    CHECK(all.count == 2 && largest.scratch_stride == 512);
    check_piece(&all, 0, 32, 0, 0);
    check_piece(&all, 1, 32, 32, 512);
    banyan_plan_destroy(plan);
}

static void largest_holds_every_message_up_to_it(void **state)
{
    (void)state;
    random_state random = random_from(random_seed());
    for (int n = 0; n < 500; n++) {
        shape of = random_shape(&random);
        banyan_plan *plan = make_plan(&of);
        random_op(&random, &of, plan);
        plan->double_scratch = n % 2;
        uint64_t most = (uint64_t)random_between(&random, 0, 2000);
        plan_geometry largest, geometry;
        CHECK_OK(plan_geometry_largest(plan, most, &largest));
        uint64_t message = (uint64_t)random_between(&random, 0, (int64_t)most);
        if (plan_geometry_make(plan, message, 1, &geometry) == BANYAN_OK) {
            CHECK(geometry.scratch_half_bytes <= largest.scratch_half_bytes);
            for (int b = 0; b < PLAN_BUFFERS; b++)
                CHECK(geometry.buffers[b].bytes <= largest.buffers[b].bytes);
        }
        banyan_plan_destroy(plan);
    }
}

/* ---- what cannot be ---- */

static void sizes_that_cannot_be_cut_are_refused(void **state)
{
    (void)state;
    plan_geometry geometry;
    shape of = {BANYAN_REDUCESCATTER, 3, 2, 1, 16};
    banyan_plan *plan = make_plan(&of);
    CHECK_FAILS(plan_geometry_make(plan, 16, 4, &geometry), BANYAN_ERR_INVALID, "3 equal parts");
    CHECK_FAILS(plan_geometry_make(plan, 30, 4, &geometry), BANYAN_ERR_INVALID, "of 4 bytes");
    CHECK_OK(plan_geometry_make(plan, 24, 4, &geometry));
    plan->buffer_alignment = 2;
    CHECK_FAILS(plan_geometry_make(plan, 24, 4, &geometry), BANYAN_ERR_INVALID, "aligns to 2");
    plan->buffer_alignment = 16;
    CHECK_FAILS(plan_geometry_make(plan, UINT64_MAX / 3 * 3, 1, &geometry), BANYAN_ERR_INVALID,
                "too long");
    plan->ranks[2].chunks[PLAN_SCRATCH] = INT64_MAX;
    CHECK_FAILS(plan_geometry_make(plan, 24, 4, &geometry), BANYAN_ERR_INVALID, "too much");
    CHECK_OK(plan_geometry_make(plan, 0, 4, &geometry));
    banyan_plan_destroy(plan);
}

static void reused_scratch_that_is_too_small_is_refused(void **state)
{
    (void)state;
    shape of = {BANYAN_ALLREDUCE, 2, 1, 2, 16};
    banyan_plan *plan = make_plan(&of);
    plan->reuse_resources = true;
    plan->reused_scratch_bytes = 128;
    plan_op *op = add_op(plan, PLAN_COPY, 1, 1);
    op->sources[0] = local(PLAN_INPUT, 0, 1);
    op->destinations[0] = local(PLAN_SCRATCH, 1, 1);
    plan_geometry geometry;
    CHECK_OK(plan_geometry_make(plan, 64, 4, &geometry));
    CHECK_FAILS(plan_geometry_make(plan, 80, 4, &geometry), BANYAN_ERR_INVALID,
                "does not fit into the 128 bytes");
    add_loop(plan, 80, 1);
    CHECK_FAILS(plan_geometry_make(plan, 160, 4, &geometry), BANYAN_ERR_INVALID, "reuses");
    plan->ranks[0].blocks[0].ops[0].unit_bytes = 64;
    CHECK_OK(plan_geometry_make(plan, 160, 4, &geometry));
    plan->ranks[0].blocks[0].ops[0].loop_chunks = UINT64_MAX / 2;
    CHECK_FAILS(plan_geometry_make(plan, 160, 4, &geometry), BANYAN_ERR_INVALID, "too long");
    banyan_plan_destroy(plan);
}

static void sizes_of_a_rank_follow_from_its_chunks(void **state)
{
    (void)state;
    uint64_t input, output;
    shape of = {BANYAN_ALLGATHER, 3, 2, 1, 16};
    banyan_plan *plan = make_plan(&of);
    CHECK_OK(banyan_plan_sizes(plan, 1, 40, &input, &output));
    CHECK(input == 40 && output == 120);
    CHECK_FAILS(banyan_plan_sizes(plan, 3, 40, &input, &output), BANYAN_ERR_INVALID, "number 3");
    banyan_plan_destroy(plan);
    of.kind = BANYAN_CUSTOM;
    plan = make_plan(&of);
    plan->ranks[1].chunks[PLAN_INPUT] = 1;
    plan->ranks[1].chunks[PLAN_OUTPUT] = 5;
    CHECK_OK(banyan_plan_sizes(plan, 1, 40, &input, &output));
    CHECK(input == 20 && output == 100);
    banyan_plan_destroy(plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_byte_is_moved_once_to_where_its_chunk_lies),
        cmocka_unit_test(a_message_that_does_not_divide_is_clipped_at_its_end),
        cmocka_unit_test(buffers_of_a_block_a_rank_are_cut_block_by_block),
        cmocka_unit_test(an_empty_message_has_no_pieces),
        cmocka_unit_test(reused_scratch_wraps_around),
        cmocka_unit_test(shares_of_reused_scratch_do_not_overlap),
        cmocka_unit_test(scratch_of_a_longer_message_keeps_its_stride),
        cmocka_unit_test(largest_holds_every_message_up_to_it),
        cmocka_unit_test(sizes_that_cannot_be_cut_are_refused),
        cmocka_unit_test(reused_scratch_that_is_too_small_is_refused),
        cmocka_unit_test(sizes_of_a_rank_follow_from_its_chunks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
