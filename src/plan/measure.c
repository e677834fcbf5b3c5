#include <inttypes.h>
#include <stdlib.h>

#include "core/containers/map.h"
#include "plan/op.h"
#include "plan/walk.h"

typedef struct measure {
    const banyan_plan *plan;
    /* laid out as if reused scratch did not wrap around: the byte counts are equal */
    const plan_geometry *geometry;
    banyan_plan_stats stats;
    map places; /* source and destination to the index in the list */
    ARRAY(banyan_plan_link) links;
    arena memory; /* of the map's keys */
    int rank;     /* the rank whose operations are counted */
    const plan_thread_block *block;
} measure;

/* Add bytes that flow from one rank to another, or stay on a rank. */
static banyan_status add_flow(measure *to, int source, int destination, uint64_t bytes)
{
    if (source == destination) {
        to->stats.local_bytes += bytes;
        return BANYAN_OK;
    }
    int key[2] = {source, destination};
    uint64_t place = to->links.count;
    if (bytes == 0)
        return BANYAN_OK;
    if (!map_get(&to->places, key, sizeof key, &place)) {
        int *kept = arena_take(&to->memory, sizeof key);
        if (!kept || !array_push(&to->links, (banyan_plan_link){source, destination, 0}))
            return BANYAN_ERR_NO_MEMORY;
        kept[0] = source;
        kept[1] = destination;
        if (!map_put(&to->places, kept, sizeof key, place))
            return BANYAN_ERR_NO_MEMORY;
    }
    to->links.data[place].bytes += bytes;
    return BANYAN_OK;
}

/* Count the bytes that the operation moves over one operand: between this rank and the operand's
 * rank, or the ranks of its group. */
static banyan_status plan_measure_add_operand(measure *to, const plan_op *op,
                                              const plan_operand *operand, bool written,
                                              uint64_t bytes)
{
    if (operand->place != PLAN_GROUP) {
        int other = plan_operand_where(to->plan, to->rank, to->block, op, operand).rank;
        if (!written && other == to->rank)
            return BANYAN_OK;
        return written ? add_flow(to, to->rank, other, bytes)
                       : add_flow(to, other, to->rank, bytes);
    }
    uint32_t channel = to->block->channels[PLAN_SWITCH][operand->reference];
    const plan_switch *group = &to->plan->ranks[to->rank].switches[channel];
    for (int i = 0; i < group->rank_count; i++) {
        int other = group->ranks[i];
        if (written)
            RETURN_IF_FAILED(add_flow(to, to->rank, other, bytes));
        else if (other != to->rank)
            RETURN_IF_FAILED(add_flow(to, other, to->rank, bytes));
    }
    return BANYAN_OK;
}

static banyan_status plan_measure_sum_piece(void *context, const plan_piece *piece)
{
    *(uint64_t *)context += piece->bytes;
    return BANYAN_OK;
}

/* All iterations of a loop together move as many bytes as the operation would outside it. */
static banyan_status count_moved(measure *to, const plan_op *op)
{
    uint64_t bytes = 0, padding = 0;
    RETURN_IF_FAILED(plan_geometry_cut(to->geometry, to->plan, to->rank, to->block, op, NULL, 0,
                                       plan_measure_sum_piece, &bytes));
    RETURN_IF_FAILED(plan_geometry_pad(to->geometry, to->plan, to->rank, to->block, op, NULL, 0,
                                       plan_measure_sum_piece, &padding));
    for (uint32_t i = 0; i < op->source_count; i++)
        RETURN_IF_FAILED(plan_measure_add_operand(to, op, &op->sources[i], false, bytes));
    for (uint32_t i = 0; i < op->destination_count; i++) {
        bool packets = plan_destination_is_packets(op, i);
        RETURN_IF_FAILED(plan_measure_add_operand(to, op, &op->destinations[i], true,
                                                  packets ? 2 * (bytes + padding) : bytes));
    }
    return BANYAN_OK;
}

static banyan_status plan_measure_count_pairs(measure *to, const plan_op *op)
{
    plan_op pair = *op;
    pair.source_count = pair.destination_count = 1;
    for (uint32_t i = 0; i < op->source_count; i++) {
        pair.sources = &op->sources[i];
        pair.destinations = &op->destinations[i];
        RETURN_IF_FAILED(count_moved(to, &pair));
    }
    return BANYAN_OK;
}

static banyan_status plan_measure_count_ops(measure *to, const plan_op *ops, uint32_t count,
                                            uint64_t times)
{
    for (uint32_t i = 0; i < count; i++) {
        const plan_op *op = &ops[i];
        if (plan_op_form_of(op->kind)->signals)
            to->stats.signals += times * op->channel_count;
        RETURN_IF_FAILED(plan_op_is_pairs(op->kind) ? plan_measure_count_pairs(to, op)
                                                    : count_moved(to, op));
        RETURN_IF_FAILED(plan_measure_count_ops(to, op->ops, op->op_count,
                                                plan_geometry_iterations(to->geometry, op)));
    }
    return BANYAN_OK;
}

static banyan_status count_all(measure *to)
{
    for (to->rank = 0; to->rank < to->plan->rank_count; to->rank++) {
        const plan_rank *rank = &to->plan->ranks[to->rank];
        for (uint32_t i = 0; i < rank->block_count; i++) {
            to->block = &rank->blocks[i];
            RETURN_IF_FAILED(plan_measure_count_ops(to, to->block->ops, to->block->op_count, 1));
        }
    }
    return BANYAN_OK;
}

static int compare_links(const void *a, const void *b)
{
    const banyan_plan_link *first = a, *second = b;
    if (first->source != second->source)
        return first->source < second->source ? -1 : 1;
    return (first->destination > second->destination) - (first->destination < second->destination);
}

static banyan_status plan_measure_all(measure *to, const plan_geometry *geometry)
{
    to->stats.input_bytes = geometry->buffers[PLAN_INPUT].bytes;
    to->stats.output_bytes = geometry->buffers[PLAN_OUTPUT].bytes;
    to->stats.scratch_bytes = geometry->buffers[PLAN_SCRATCH].bytes;
    RETURN_IF_FAILED(count_all(to));
    RETURN_IF_FAILED(plan_walk_hops(to->plan, geometry, &to->stats.critical_hops));
    if (to->links.count > 0)
        qsort(to->links.data, to->links.count, sizeof *to->links.data, compare_links);
    return BANYAN_OK;
}

banyan_status banyan_plan_measure(const banyan_plan *plan, uint64_t message_bytes,
                                  banyan_plan_stats *stats)
{
    plan_geometry geometry;
    RETURN_IF_FAILED(plan_geometry_make(plan, message_bytes, 1, &geometry));
    plan_geometry unwrapped = geometry;
    unwrapped.scratch_stride = geometry.chunk_bytes;
    measure to = {.plan = plan, .geometry = &unwrapped};
    banyan_status status = plan_measure_all(&to, &geometry);
    map_free(&to.places);
    arena_free(&to.memory);
    if (status != BANYAN_OK) {
        array_free(&to.links);
        return status;
    }
    *stats = to.stats;
    stats->links = to.links.data;
    stats->link_count = to.links.count;
    return BANYAN_OK;
}
