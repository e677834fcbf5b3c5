/* Positions of chunks, against a reference that finds every byte's place by counting. */
#include <inttypes.h>

#include "plan/shapes.h"

static const banyan_collective_kind kinds[] = {
    BANYAN_CUSTOM,   BANYAN_ALLREDUCE, BANYAN_ALLGATHER, BANYAN_REDUCESCATTER,
    BANYAN_ALLTOALL, BANYAN_SENDRECV,  BANYAN_BROADCAST, BANYAN_REDUCE,
};

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

/* Return the bytes of a chunk, and its offset in its buffer. */
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
    uint32_t operands, key; /* key: an operand in scratch, whose offset gives the position */
    uint64_t key_start;     /* offset where it begins */
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

/* Return the owner of a byte: the first members have one alignment unit more. */
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

static const plan_op_kind cut_kinds[] = {PLAN_COPY, PLAN_COPY_PACKET, PLAN_REDUCE,
                                         PLAN_REDUCE_PACKET, PLAN_REDUCE_SEND_PACKET};

/* All operands have this many chunks; the last one is in scratch. */
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
        bool pads_it = plan_op_writes_packets(op->kind) || plan_op_reads_packets(op->kind);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_byte_is_moved_once_to_where_its_chunk_lies),
        cmocka_unit_test(largest_holds_every_message_up_to_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
