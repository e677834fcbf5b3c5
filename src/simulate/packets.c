#include "simulate/packets.h"

/* Writers, each counted for every chunk. */
#define WRITERS_MOST (UINT64_C(1) << 24)

__extension__ typedef unsigned __int128 wide;

typedef struct chunk_key {
    uint64_t rank, chunk;
} chunk_key;

static size_t first_writer(const packets *all, int rank, uint64_t chunk)
{
    chunk_key key = {(uint64_t)rank, chunk};
    uint64_t first = 0;
    map_get(&all->chunks, &key, sizeof key, &first);
    return (size_t)first;
}

/* Ranks that a destination lies on: one, or a group. */
static int destination_ranks(const packets *all, int rank, const plan_thread_block *block,
                             const plan_op *op, const plan_operand *operand, const int **ranks,
                             int *room)
{
    if (operand->place != PLAN_GROUP) {
        *room = plan_operand_where(all->plan, rank, block, op, operand).rank;
        *ranks = room;
        return 1;
    }
    uint32_t channel = block->channels[PLAN_SWITCH][operand->reference];
    const plan_switch *group = &all->plan->ranks[rank].switches[channel];
    *ranks = group->ranks;
    return group->rank_count;
}

/* ---- who will write ---- */

static bool add_writer(packets *all, int rank, uint64_t chunk, const packet_writer *writer)
{
    size_t place = all->writers.count, first = first_writer(all, rank, chunk);
    if (!array_push(&all->writers, *writer))
        return false;
    if (first != 0) {
        all->writers.data[place].next = all->writers.data[first].next;
        all->writers.data[first].next = place;
        return true;
    }
    chunk_key *key = arena_take(&all->memory, sizeof *key);
    if (!key)
        return false;
    *key = (chunk_key){(uint64_t)rank, chunk};
    return map_put(&all->chunks, key, sizeof *key, place);
}

static banyan_status add_chunks(packets *all, int rank, const plan_operand *operand,
                                const packet_writer *writer)
{
    if (operand->size > WRITERS_MOST - all->writers.count)
        return error_set(BANYAN_ERR_UNSUPPORTED,
                         "the plan writes packets to more than %llu chunks, too many to simulate",
                         (unsigned long long)WRITERS_MOST);
    for (uint64_t i = 0; i < operand->size; i++) {
        if (!add_writer(all, rank, operand->index + i, writer))
            return BANYAN_ERR_NO_MEMORY;
    }
    return BANYAN_OK;
}

static banyan_status add_op(packets *all, int rank, const packet_writer *writer)
{
    const plan_op *op = writer->op;
    for (uint32_t i = 0; i < op->destination_count; i++) {
        const plan_operand *operand = &op->destinations[i];
        const int *ranks;
        int one;
        if (!plan_destination_is_packets(op, i))
            continue;
        int count = destination_ranks(all, rank, writer->block, op, operand, &ranks, &one);
        for (int r = 0; r < count; r++)
            RETURN_IF_FAILED(add_chunks(all, ranks[r], operand, writer));
    }
    return BANYAN_OK;
}

static banyan_status add_block(packets *all, int rank, const plan_thread_block *block,
                               const plan_geometry *geometry)
{
    for (uint32_t i = 0; i < block->op_count; i++) {
        const plan_op *op = &block->ops[i];
        packet_writer writer = {.block = block,
                                .iterations = plan_geometry_iterations(geometry, op)};
        writer.op = op;
        RETURN_IF_FAILED(add_op(all, rank, &writer));
        for (uint32_t k = 0; k < op->op_count; k++) {
            writer.op = &op->ops[k];
            RETURN_IF_FAILED(add_op(all, rank, &writer));
        }
    }
    return BANYAN_OK;
}

banyan_status packets_make(const banyan_plan *plan, const plan_geometry *geometry, packets *made)
{
    *made = (packets){.plan = plan};
    if (!array_push(&made->writers, (packet_writer){.op = NULL}))
        return BANYAN_ERR_NO_MEMORY;
    for (int r = 0; r < plan->rank_count; r++) {
        for (uint32_t b = 0; b < plan->ranks[r].block_count; b++)
            RETURN_IF_FAILED(add_block(made, r, &plan->ranks[r].blocks[b], geometry));
    }
    return BANYAN_OK;
}

void packets_free(packets *old)
{
    map_free(&old->chunks);
    array_free(&old->writers);
    arena_free(&old->memory);
}

/* ---- what was written ---- */

static void note_chunk(packets *all, size_t at, const packet_writer *news)
{
    for (; at != 0; at = all->writers.data[at].next) {
        packet_writer *writer = &all->writers.data[at];
        if (writer->op != news->op || writer->block != news->block || writer->done > news->done)
            continue;
        writer->done = news->done + 1;
        writer->arrived_ps = news->arrived_ps;
        writer->step = news->step;
    }
}

void packets_arrive(packets *all, int rank, const packet_writer *writer, uint32_t destination,
                    packets_reached reached, void *context)
{
    const plan_op *op = writer->op;
    for (uint32_t i = 0; i < op->destination_count; i++) {
        const plan_operand *operand = &op->destinations[i];
        const int *ranks;
        int one;
        bool meant = destination == PACKETS_ALL || destination == i;
        if (!meant || !plan_destination_is_packets(op, i))
            continue;
        int count = destination_ranks(all, rank, writer->block, op, operand, &ranks, &one);
        for (int r = 0; r < count; r++) {
            for (uint64_t c = 0; c < operand->size; c++)
                note_chunk(all, first_writer(all, ranks[r], operand->index + c), writer);
            reached(context, ranks[r]);
        }
    }
}

/* Loops of another number of iterations are as far when they have done the same share of theirs. */
static bool chunk_was_sent(const packets *all, size_t at, uint64_t iteration, uint64_t iterations,
                           uint64_t *arrived_ps, uint32_t *step)
{
    if (at == 0)
        return false;
    for (; at != 0; at = all->writers.data[at].next) {
        const packet_writer *writer = &all->writers.data[at];
        if ((wide)writer->done * iterations < (wide)(iteration + 1) * writer->iterations)
            return false;
        if (writer->arrived_ps <= *arrived_ps)
            continue;
        *arrived_ps = writer->arrived_ps;
        *step = writer->step;
    }
    return true;
}

bool packets_sent(const packets *all, int rank, const plan_op *op, uint64_t iteration,
                  uint64_t iterations, uint64_t *arrived_ps, uint32_t *step)
{
    for (uint32_t i = 0; i < op->source_count; i++) {
        const plan_operand *operand = &op->sources[i];
        for (uint64_t c = 0; plan_source_is_packets(op, i) && c < operand->size; c++) {
            size_t first = first_writer(all, rank, operand->index + c);
            if (!chunk_was_sent(all, first, iteration, iterations, arrived_ps, step))
                return false;
        }
    }
    return true;
}
