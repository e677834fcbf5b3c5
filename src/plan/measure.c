#include <inttypes.h>
#include <stdlib.h>

#include "plan/op.h"
#include "plan/packet_writers.h"
#include "plan/stepper.h"

typedef struct measure {
    const banyan_plan *plan;
    /* laid out as if reused scratch did not wrap around: the byte counts are equal */
    const plan_geometry *geometry;
    banyan_plan_stats stats;
    hash_map places; /* source and destination to the index in the list */
    ARRAY(banyan_plan_link) links;
    arena memory; /* of the map's keys */
    plan_cursor at;
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
        if (!array_push(&to->links, (banyan_plan_link){source, destination, 0}) ||
            !map_put_copy(&to->places, &to->memory, key, sizeof key, place))
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
    const int *others;
    int room, rank = to->at.rank;
    int count = plan_operand_ranks(to->plan, rank, to->at.block, op, operand, &others, &room);
    for (int i = 0; i < count; i++) {
        if (written)
            RETURN_IF_FAILED(add_flow(to, rank, others[i], bytes));
        else if (others[i] != rank)
            RETURN_IF_FAILED(add_flow(to, others[i], rank, bytes));
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
    RETURN_IF_FAILED(plan_geometry_cut(to->geometry, to->plan, to->at.rank, to->at.block, op, NULL,
                                       0, plan_measure_sum_piece, &bytes));
    RETURN_IF_FAILED(plan_geometry_pad(to->geometry, to->plan, to->at.rank, to->at.block, op, NULL,
                                       0, plan_measure_sum_piece, &padding));
    for (uint32_t i = 0; i < plan_operand_count(op); i++) {
        bool written = i >= op->source_count, packets = written && plan_operand_is_packets(op, i);
        RETURN_IF_FAILED(plan_measure_add_operand(to, op, plan_operand_at(op, i), written,
                                                  packets ? 2 * (bytes + padding) : bytes));
    }
    return BANYAN_OK;
}

static banyan_status count_all(measure *to)
{
    to->at.plan = to->plan;
    while (plan_cursor_next(&to->at)) {
        const plan_op *op = to->at.op;
        uint64_t times = to->at.loop ? plan_geometry_iterations(to->geometry, to->at.loop) : 1;
        if (plan_op_form_of(op->kind)->signals)
            to->stats.signals += times * op->channel_count;
        if (!plan_op_is_pairs(op->kind)) {
            RETURN_IF_FAILED(count_moved(to, op));
            continue;
        }
        for (uint32_t i = 0; i < plan_op_part_count(op); i++) {
            plan_op pair = plan_op_part(op, i);
            RETURN_IF_FAILED(count_moved(to, &pair));
        }
    }
    return BANYAN_OK;
}

/* Steps after which a walk through the plan is abandoned: a fraction of a second. */
#define STEPS_MOST (UINT64_C(1) << 22)
/* Most writers of packets, each counted for every chunk. */
#define WRITERS_MOST (UINT64_C(1) << 20)

/* A walk through the plan in an executable order. */
typedef struct walk {
    plan_stepper stepper;
    packet_writers packets;
    plan_event *depths; /* of each thread block: hops on the longest way to its position */
    uint64_t steps;
} walk;

typedef enum walk_outcome { DONE, WAITS, FAILED } walk_outcome;

static walk_outcome walk_give(walk *all, const plan_position *by, const plan_op *op, uint64_t depth)
{
    plan_event at = {.when = depth + (op->kind != PLAN_SEM_RELEASE)};
    for (uint32_t k = 0; k < plan_op_gives(op); k++) {
        uint32_t to = plan_stepper_given(&all->stepper, by, op, k);
        if (to == PLAN_NONE)
            return WAITS;
        if (!plan_counter_give(&all->stepper.counters[to], at))
            return FAILED;
    }
    return DONE;
}

static walk_outcome walk_barrier(walk *all, plan_position *by, const plan_op *op, plan_event *depth)
{
    uint32_t number = plan_stepper_barrier(&all->stepper, by, op);
    plan_barrier *at = &all->stepper.barriers.data[number];
    if (!by->arrived)
        plan_barrier_arrive(at, by, *depth);
    if (!plan_barrier_pass(at, by))
        return WAITS;
    plan_event_raise(depth, at->last);
    return DONE;
}

/* Perform an operation; it waits for tokens, and for the packets that it reads. */
static walk_outcome walk_step(walk *all, plan_position *by, plan_event *depth)
{
    const plan_op *op = plan_position_op(by);
    if (op->kind == PLAN_BARRIER)
        return walk_barrier(all, by, op, depth);
    if (!plan_stepper_take(&all->stepper, by, depth))
        return WAITS;
    if (plan_op_reads_packets(op->kind) &&
        !packet_writers_have(&all->packets, by->rank, op, by->iteration, by->iterations, depth))
        return WAITS;
    packets_written news = {.rank = by->rank,
                            .block = by->block,
                            .op = op,
                            .iteration = by->iteration,
                            .destination = PACKETS_ALL,
                            .at = *depth,
                            .away = 1};
    if (plan_op_writes_packets(op->kind))
        packet_writers_wrote(&all->packets, &news, NULL, NULL);
    return walk_give(all, by, op, depth->when);
}

static bool walk_is_too_long(const walk *all)
{
    return all->steps + all->packets.looks >= STEPS_MOST;
}

/* Run the thread block as far as possible; `moved` is set if it made progress. */
static walk_outcome walk_block(walk *all, uint32_t number, bool *moved)
{
    plan_position *by = &all->stepper.blocks[number];
    walk_outcome result = DONE;
    while (result == DONE && !walk_is_too_long(all) && plan_position_settle(&all->stepper, by)) {
        all->steps++;
        result = walk_step(all, by, &all->depths[number]);
        if (result != DONE)
            break;
        plan_position_next(by);
        *moved = true;
    }
    return result;
}

static banyan_status walk_through(walk *all)
{
    for (bool moved = true; moved && !walk_is_too_long(all);) {
        moved = false;
        for (uint32_t i = 0; i < all->stepper.block_count; i++) {
            if (walk_block(all, i, &moved) == FAILED)
                return BANYAN_ERR_NO_MEMORY;
            all->steps++;
        }
    }
    return BANYAN_OK;
}

/* Get the hops between ranks on the longest path to the end of the plan. 0: there are none, the
 * walk ends in a deadlock, or it takes too many steps. */
static banyan_status measure_hops(const banyan_plan *plan, const plan_geometry *geometry,
                                  uint64_t *hops)
{
    walk all = {.steps = 0};
    banyan_status status = plan_stepper_make(plan, geometry, &all.stepper);
    uint32_t count = all.stepper.block_count;
    if (status == BANYAN_OK)
        status = packet_writers_make(plan, geometry, WRITERS_MOST, &all.packets);
    if (status == BANYAN_OK &&
        !(all.depths = arena_zeroed(&all.stepper.memory, count, sizeof *all.depths)))
        status = BANYAN_ERR_NO_MEMORY;
    if (status == BANYAN_OK && !all.packets.too_many)
        status = walk_through(&all);
    bool ended = status == BANYAN_OK;
    for (uint32_t i = 0; i < count && ended; i++)
        ended = plan_position_ended(&all.stepper.blocks[i]);
    for (uint32_t i = 0; i < count && ended; i++)
        *hops = all.depths[i].when > *hops ? all.depths[i].when : *hops;
    packet_writers_free(&all.packets);
    plan_stepper_free(&all.stepper);
    return status;
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
    RETURN_IF_FAILED(measure_hops(to->plan, geometry, &to->stats.critical_hops));
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
