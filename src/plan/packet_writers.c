#include "plan/packet_writers.h"

__extension__ typedef unsigned __int128 wide;

typedef struct chunk_key {
    uint64_t rank, chunk;
} chunk_key;

static size_t first_writer(const packet_writers *all, int rank, uint64_t chunk)
{
    chunk_key key = {(uint64_t)rank, chunk};
    uint64_t first = 0;
    map_get(&all->chunks, &key, sizeof key, &first);
    return (size_t)first;
}

static bool add_writer(packet_writers *all, int rank, uint64_t chunk, const packet_writer *writer)
{
    size_t place = all->list.count, first = first_writer(all, rank, chunk);
    if (!array_push(&all->list, *writer))
        return false;
    if (first != 0) {
        all->list.data[place].next = all->list.data[first].next;
        all->list.data[first].next = place;
        return true;
    }
    chunk_key key = {(uint64_t)rank, chunk};
    return map_put_copy(&all->chunks, &all->memory, &key, sizeof key, place);
}

static bool add_operand(packet_writers *all, const plan_cursor *at, const plan_operand *operand,
                        const packet_writer *writer)
{
    const int *ranks;
    int room;
    int count = plan_operand_ranks(all->plan, at->rank, at->block, at->op, operand, &ranks, &room);
    for (int r = 0; r < count && !all->too_many; r++) {
        all->too_many = operand->size > all->most - all->list.count;
        for (uint64_t i = 0; i < operand->size && !all->too_many; i++) {
            if (!add_writer(all, ranks[r], operand->index + i, writer))
                return false;
        }
    }
    return true;
}

banyan_status packet_writers_make(const banyan_plan *plan, const plan_geometry *geometry,
                                  uint64_t most, packet_writers *made)
{
    *made = (packet_writers){.plan = plan, .most = most};
    bool added = array_push(&made->list, (packet_writer){.op = NULL});
    for (plan_cursor at = {.plan = plan}; added && !made->too_many && plan_cursor_next(&at);) {
        packet_writer writer = {.op = at.op,
                                .block = at.block,
                                .iterations =
                                    at.loop ? plan_geometry_iterations(geometry, at.loop) : 1};
        for (uint32_t i = 0; i < at.op->destination_count && added; i++)
            added = !plan_destination_is_packets(at.op, i) ||
                    add_operand(made, &at, &at.op->destinations[i], &writer);
    }
    return added ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
}

void packet_writers_free(packet_writers *old)
{
    map_free(&old->chunks);
    array_free(&old->list);
    arena_free(&old->memory);
}

static void note_chunk(packet_writers *all, int rank, uint64_t chunk, const packets_written *news)
{
    all->looks++;
    for (size_t at = first_writer(all, rank, chunk); at != 0; at = all->list.data[at].next) {
        packet_writer *writer = &all->list.data[at];
        all->looks++;
        if (writer->op != news->op || writer->block != news->block ||
            writer->done > news->iteration)
            continue;
        writer->done = news->iteration + 1;
        writer->at = news->at;
        writer->at.when += rank != news->rank ? news->away : 0;
    }
}

void packet_writers_wrote(packet_writers *all, const packets_written *news, packets_reached reached,
                          void *context)
{
    const plan_op *op = news->op;
    for (uint32_t i = 0; i < op->destination_count; i++) {
        const plan_operand *operand = &op->destinations[i];
        const int *ranks;
        int one;
        bool meant = news->destination == PACKETS_ALL || news->destination == i;
        if (!meant || !plan_destination_is_packets(op, i))
            continue;
        int count =
            plan_operand_ranks(all->plan, news->rank, news->block, op, operand, &ranks, &one);
        for (int r = 0; r < count; r++) {
            for (uint64_t c = 0; c < operand->size; c++)
                note_chunk(all, ranks[r], operand->index + c, news);
            if (reached)
                reached(context, ranks[r]);
        }
    }
}

/* Loops with different iteration counts are equally far when they have done an equal fraction of
 * their iterations. */
static bool chunk_has_come(packet_writers *all, size_t at, uint64_t iteration, uint64_t iterations,
                           plan_event *latest)
{
    all->looks++;
    if (at == 0)
        return false;
    for (; at != 0; at = all->list.data[at].next) {
        const packet_writer *writer = &all->list.data[at];
        all->looks++;
        if ((wide)writer->done * iterations < (wide)(iteration + 1) * writer->iterations)
            return false;
        if (writer->at.when > latest->when)
            *latest = writer->at;
    }
    return true;
}

bool packet_writers_have(packet_writers *all, int rank, const plan_op *op, uint64_t iteration,
                         uint64_t iterations, plan_event *latest)
{
    for (uint32_t i = 0; i < op->source_count; i++) {
        const plan_operand *operand = &op->sources[i];
        for (uint64_t c = 0; plan_source_is_packets(op, i) && c < operand->size; c++) {
            size_t first = first_writer(all, rank, operand->index + c);
            if (!chunk_has_come(all, first, iteration, iterations, latest))
                return false;
        }
    }
    return true;
}
