#include "plan/walk_packets.h"

/* Writers, each counted for every chunk. */
#define WRITERS_MOST (UINT64_C(1) << 20)

__extension__ typedef unsigned __int128 wide;

typedef struct chunk_key {
    uint64_t rank, chunk;
} chunk_key;

static size_t first_writer(const walk_packets *packets, int rank, uint64_t chunk)
{
    chunk_key key = {(uint64_t)rank, chunk};
    uint64_t first = 0;
    map_get(&packets->chunks, &key, sizeof key, &first);
    return (size_t)first;
}

/* Called for every rank and operand that the operation writes packets to. */
typedef bool (*target_visit)(walk_packets *packets, int rank, const plan_operand *operand,
                             const packet_writer *writer);

static bool visit_targets(walk_packets *packets, int rank, const plan_thread_block *block,
                          const packet_writer *writer, target_visit visit)
{
    const plan_op *op = writer->op;
    for (uint32_t i = 0; i < op->destination_count; i++) {
        const plan_operand *operand = &op->destinations[i];
        if (!plan_destination_is_packets(op, i))
            continue;
        if (operand->place != PLAN_GROUP) {
            plan_where where = plan_operand_where(packets->plan, rank, block, op, operand);
            packet_writer own = *writer;
            own.depth += where.rank != rank;
            if (!visit(packets, where.rank, operand, &own))
                return false;
            continue;
        }
        uint32_t channel = block->channels[PLAN_SWITCH][operand->reference];
        const plan_switch *group = &packets->plan->ranks[rank].switches[channel];
        for (int m = 0; m < group->rank_count; m++) {
            packet_writer own = *writer;
            own.depth += group->ranks[m] != rank;
            if (!visit(packets, group->ranks[m], operand, &own))
                return false;
        }
    }
    return true;
}

/* ---- who will write ---- */

static bool add_writer(walk_packets *packets, int rank, uint64_t chunk, const packet_writer *writer)
{
    size_t place = packets->writers.count, first = first_writer(packets, rank, chunk);
    if (!array_push(&packets->writers, *writer))
        return false;
    if (first != 0) {
        packets->writers.data[place].next = packets->writers.data[first].next;
        packets->writers.data[first].next = place;
        return true;
    }
    chunk_key *key = arena_take(&packets->memory, sizeof *key);
    if (!key)
        return false;
    *key = (chunk_key){(uint64_t)rank, chunk};
    return map_put(&packets->chunks, key, sizeof *key, place);
}

static bool note_target(walk_packets *packets, int rank, const plan_operand *operand,
                        const packet_writer *writer)
{
    packets->too_many |= operand->size > WRITERS_MOST - packets->writers.count;
    for (uint64_t i = 0; i < operand->size && !packets->too_many; i++) {
        if (!add_writer(packets, rank, operand->index + i, writer))
            return false;
    }
    return true;
}

static bool note_ops(walk_packets *packets, int rank, const plan_thread_block *block,
                     const plan_op *ops, uint32_t count, const plan_geometry *geometry,
                     uint64_t iterations)
{
    for (uint32_t i = 0; i < count && !packets->too_many; i++) {
        const plan_op *op = &ops[i];
        packet_writer writer = {.op = op, .iterations = iterations};
        uint64_t inside = plan_geometry_iterations(geometry, op);
        if (!visit_targets(packets, rank, block, &writer, note_target) ||
            !note_ops(packets, rank, block, op->ops, op->op_count, geometry, inside))
            return false;
    }
    return true;
}

banyan_status walk_packets_make(walk_packets *packets, const banyan_plan *plan,
                                const plan_geometry *geometry)
{
    packets->plan = plan;
    bool noted = array_push(&packets->writers, (packet_writer){.op = NULL});
    for (int r = 0; r < plan->rank_count && noted; r++) {
        for (uint32_t b = 0; b < plan->ranks[r].block_count && noted; b++) {
            const plan_thread_block *block = &plan->ranks[r].blocks[b];
            noted = note_ops(packets, r, block, block->ops, block->op_count, geometry, 1);
        }
    }
    return noted ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
}

void walk_packets_free(walk_packets *packets)
{
    map_free(&packets->chunks);
    array_free(&packets->writers);
    arena_free(&packets->memory);
}

/* ---- the walk ---- */

static bool note_written(walk_packets *packets, int rank, const plan_operand *operand,
                         const packet_writer *writer)
{
    for (uint64_t i = 0; i < operand->size; i++) {
        size_t at = first_writer(packets, rank, operand->index + i);
        packets->steps++;
        for (; at != 0 && packets->writers.data[at].op != writer->op; packets->steps++)
            at = packets->writers.data[at].next;
        if (at == 0)
            continue;
        packets->writers.data[at].done = writer->done;
        packets->writers.data[at].depth = writer->depth;
    }
    return true;
}

void walk_packets_write(walk_packets *packets, int rank, const plan_thread_block *block,
                        const plan_op *op, uint64_t iteration, uint64_t depth)
{
    packet_writer writer = {.op = op, .done = iteration + 1, .depth = depth};
    visit_targets(packets, rank, block, &writer, note_written);
}

static bool chunk_has_come(walk_packets *packets, int rank, uint64_t chunk, uint64_t iteration,
                           uint64_t iterations, uint64_t *depth)
{
    size_t at = first_writer(packets, rank, chunk);
    packets->steps++;
    if (at == 0)
        return false;
    for (; at != 0; at = packets->writers.data[at].next) {
        const packet_writer *writer = &packets->writers.data[at];
        packets->steps++;
        if ((wide)writer->done * iterations < (wide)(iteration + 1) * writer->iterations)
            return false;
        if (writer->depth > *depth)
            *depth = writer->depth;
    }
    return true;
}

bool walk_packets_read(walk_packets *packets, int rank, const plan_op *op, uint64_t iteration,
                       uint64_t iterations, uint64_t *depth)
{
    for (uint32_t i = 0; i < op->source_count; i++) {
        const plan_operand *operand = &op->sources[i];
        for (uint64_t c = 0; plan_source_is_packets(op, i) && c < operand->size; c++) {
            if (!chunk_has_come(packets, rank, operand->index + c, iteration, iterations, depth))
                return false;
        }
    }
    return true;
}
