#include <math.h>

#include "plan/op.h"
#include "simulate/engine/engine.h"
#include "simulate/simulation.h"

/* Bytes that a thread block moves, per kind of rate. */
typedef struct block_work {
    double local, loaded, stored, packed;
    double summed; /* stored bytes that the arithmetic itself stores */
} block_work;

/* The components of a flow. */
typedef struct load {
    sim_engine *all;
    uint32_t lane;
    const sim_move *move;
    double data, packets;     /* bytes of an operand, as plain data or as packets */
    block_work work, in_ring; /* the latter in scratch that is used in rounds */
    double reduced;
    uint64_t land_ps;
} load;

static banyan_status sim_move_sum_piece(void *context, const plan_piece *piece)
{
    *(uint64_t *)context += piece->bytes;
    return BANYAN_OK;
}

static banyan_status count_bytes(load *to)
{
    const sim_move *move = to->move;
    const sim_engine *all = to->all;
    uint64_t bytes = 0, padding = 0;
    RETURN_IF_FAILED(plan_geometry_cut(&all->geometry, all->plan, move->rank, move->block, move->op,
                                       move->loop, move->iteration, sim_move_sum_piece, &bytes));
    if (plan_op_writes_packets(move->op->kind))
        RETURN_IF_FAILED(plan_geometry_pad(&all->geometry, all->plan, move->rank, move->block,
                                           move->op, move->loop, move->iteration,
                                           sim_move_sum_piece, &padding));
    to->data = (double)bytes;
    to->packets = 2 * (double)(bytes + padding);
    return BANYAN_OK;
}

banyan_status sim_latency(sim_engine *all, int from, int to, uint64_t *latency_ps)
{
    RETURN_IF_FAILED(routes_require(&all->routes, (uint32_t)from, (uint32_t)to, &all->way));
    *latency_ps = all->way.latency_ps;
    return BANYAN_OK;
}

static banyan_status add_way(load *to, uint32_t source, uint32_t destination, double bytes,
                             bool written)
{
    sim_engine *all = to->all;
    const processor_kind *kind = all->ranks[to->move->rank].kind;
    double overhead = written ? kind->store_overhead : kind->load_overhead;
    RETURN_IF_FAILED(routes_require(&all->routes, source, destination, &all->way));
    for (size_t i = 0; i < all->way.links.count; i++) {
        if (!flow_add_framed(&all->sharing, to->lane, all->way.links.data[i], bytes,
                             to->move->by_port ? 1 : overhead))
            return BANYAN_ERR_NO_MEMORY;
    }
    return BANYAN_OK;
}

static banyan_status add_memory(load *to, int rank, double bytes)
{
    uint32_t number = resource_memory(to->all->topology, rank);
    return flow_add(&to->all->sharing, to->lane, number, bytes) ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
}

/* Test whether the members reach each other through this switch, and how far it is from the first.
 */
static banyan_status try_switch(sim_engine *all, int rank, const plan_switch *group,
                                uint32_t vertex, bool *there, uint64_t *latency_ps)
{
    *there = true;
    for (int m = 0; m < group->rank_count && *there; m++) {
        uint32_t member = (uint32_t)group->ranks[m];
        RETURN_IF_FAILED(routes_find(&all->routes, member, vertex, &all->way, there));
        if (*there)
            RETURN_IF_FAILED(routes_find(&all->routes, vertex, member, &all->way, there));
    }
    if (*there)
        RETURN_IF_FAILED(routes_find(&all->routes, (uint32_t)rank, vertex, &all->way, there));
    *latency_ps = all->way.latency_ps;
    return BANYAN_OK;
}

static banyan_status find_switch(sim_engine *all, int rank, const plan_switch *group,
                                 uint32_t *found)
{
    uint64_t nearest = UINT64_MAX;
    for (uint32_t v = 0; v < all->topology->vertices.count; v++) {
        bool there;
        uint64_t latency_ps;
        if (!all->topology->vertices.data[v].multicast)
            continue;
        RETURN_IF_FAILED(try_switch(all, rank, group, v, &there, &latency_ps));
        if (!there || latency_ps >= nearest)
            continue;
        nearest = latency_ps;
        *found = v;
    }
    if (nearest == UINT64_MAX)
        return error_set(
            BANYAN_ERR_UNSUPPORTED,
            "topology %s: rank %d has a switch channel of %d ranks, and no switch with "
            "multicast is reached by all of them",
            all->topology->name, rank, group->rank_count);
    return BANYAN_OK;
}

/* Find the switch of a switch channel of the rank. UNSUPPORTED. */
static banyan_status sim_switch(sim_engine *all, int rank, const plan_switch *group,
                                uint32_t *vertex)
{
    uint32_t *known = &all->ranks[rank].switches[group - all->plan->ranks[rank].switches];
    if (*known == UINT32_MAX)
        RETURN_IF_FAILED(find_switch(all, rank, group, known));
    *vertex = *known;
    return BANYAN_OK;
}

static banyan_status sim_move_add_group(load *to, const plan_operand *operand, bool written,
                                        double bytes)
{
    int rank = to->move->rank;
    uint32_t middle;
    const plan_switch *group = plan_operand_group(to->all->plan, rank, to->move->block, operand);
    RETURN_IF_FAILED(sim_switch(to->all, rank, group, &middle));
    for (int m = 0; m < group->rank_count; m++) {
        uint32_t member = (uint32_t)group->ranks[m];
        RETURN_IF_FAILED(
            add_way(to, written ? middle : member, written ? member : middle, bytes, written));
        RETURN_IF_FAILED(add_memory(to, group->ranks[m], bytes));
        if (written && to->all->way.latency_ps > to->land_ps)
            to->land_ps = to->all->way.latency_ps;
    }
    uint32_t self = (uint32_t)rank;
    RETURN_IF_FAILED(add_way(to, written ? self : middle, written ? middle : self, bytes, written));
    to->land_ps += written ? to->all->way.latency_ps : 0;
    return BANYAN_OK;
}

static bool sim_move_is_shared(const sim_engine *all, const sim_move *move)
{
    return all->ranks[move->rank].kind->shared_memory;
}

/* Return the share of the operand that is not the rank's own: peers' memory, or data in others'
 * caches where memory is shared. */
static double fraction_of_others(const sim_engine *all, const sim_move *move,
                                 const plan_operand *operand, bool in_packets, bool written)
{
    if (sim_move_is_shared(all, move))
        return caches_fraction_of_others(&all->caches, move->rank, move->block, move->op, operand,
                                         in_packets, written);
    return operand->place != PLAN_LOCAL;
}

/* True for the destination that receives the sum: a reduction writes its sum to one place, its own
 * if it can, and copies it from there. */
static bool gets_sum(const plan_op *op, const plan_operand *operand)
{
    return plan_op_reduces(op->kind) &&
           (op->destination_count == 1 || operand->place == PLAN_LOCAL);
}

static banyan_status sim_move_add_operand(load *to, const plan_operand *operand, bool in_packets,
                                          bool written)
{
    const sim_move *move = to->move;
    const sim_engine *all = to->all;
    double bytes = in_packets ? to->packets : to->data;
    double others = fraction_of_others(all, move, operand, in_packets, written);
    plan_where where = plan_operand_where(all->plan, move->rank, move->block, move->op, operand);
    block_work *sort = caches_go_round(&all->geometry, where.buffer) ? &to->in_ring : &to->work;
    if (in_packets)
        sort->packed += bytes;
    *(written ? &sort->stored : &sort->loaded) += in_packets ? 0 : bytes * others;
    sort->local += in_packets ? 0 : bytes * (1 - others);
    if (written && !in_packets && gets_sum(move->op, operand))
        sort->summed += bytes * others;
    if (operand->place == PLAN_GROUP)
        return sim_move_add_group(to, operand, written, bytes);
    RETURN_IF_FAILED(add_memory(to, where.rank, bytes));
    if (where.rank == move->rank)
        return BANYAN_OK;
    uint32_t self = (uint32_t)move->rank, peer = (uint32_t)where.rank;
    RETURN_IF_FAILED(add_way(to, written ? self : peer, written ? peer : self, bytes, written));
    if (written && to->all->way.latency_ps > to->land_ps)
        to->land_ps = to->all->way.latency_ps;
    return BANYAN_OK;
}

static banyan_status sim_move_add_operands(load *to)
{
    const plan_op *op = to->move->op;
    if (plan_op_reduces(op->kind))
        to->reduced = to->data * op->source_count;
    for (uint32_t i = 0; i < plan_operand_count(op); i++)
        RETURN_IF_FAILED(sim_move_add_operand(
            to, plan_operand_at(op, i), plan_operand_is_packets(op, i), i >= op->source_count));
    return BANYAN_OK;
}

static double moved_on_core(const block_work *of, const block_rates *rates)
{
    return of->local / rates->local + of->loaded / rates->load +
           (of->stored - of->summed) / rates->store + of->summed / rates->reduce_store +
           of->packed / rates->packet;
}

/* Time on a core, which fetches its lines one after the other, and adds meanwhile. A sum stored to
 * lines that others hold takes longer than a copy to them. */
static double alone_on_core(const load *of, const sim_rank *rank)
{
    double moved =
        moved_on_core(&of->work, &rank->rates) + moved_on_core(&of->in_ring, &rank->ring_rates);
    return fmax(moved, of->reduced / rank->rates.reduce);
}

/* Time in a thread block, whose many threads read and write concurrently; one that reduces has one
 * load in flight, and stores when it has them all. */
static double alone_in_block(const load *of, const block_rates *rates)
{
    double loaded = of->work.loaded + of->in_ring.loaded;
    double stored = of->work.stored + of->in_ring.stored;
    double moved =
        fmax(fmax((of->work.local + of->in_ring.local) / rates->local, loaded / rates->load),
             fmax(stored / rates->store, (of->work.packed + of->in_ring.packed) / rates->packet));
    if (!plan_op_reduces(of->move->op->kind))
        return moved;
    double own = of->reduced - loaded;
    return fmax(moved, own / rates->reduce + loaded / rates->reduce_load + stored / rates->store);
}

/* Return the seconds at the rates of the move's method, without contention on links. */
static double sim_move_alone(const load *of, double wire)
{
    const sim_rank *rank = &of->all->ranks[of->move->rank];
    if (of->move->by_port)
        return wire / rank->kind->port_bytes_per_s;
    return rank->kind->shared_memory ? alone_on_core(of, rank) : alone_in_block(of, &rank->rates);
}

/* Return the bytes on the link that carries most or, without links, in memory. */
static double sim_move_heaviest(const load *of)
{
    const flow *made = &of->all->sharing.flows[of->lane];
    double on_links = 0, in_memory = 0;
    for (size_t u = 0; u < made->uses.count; u++) {
        const flow_use *use = &made->uses.data[u];
        double *most = use->resource < of->all->topology->links.count ? &on_links : &in_memory;
        *most = fmax(*most, use->bytes);
    }
    return on_links > 0 ? on_links : in_memory;
}

banyan_status move_begin(sim_engine *all, uint32_t lane, const sim_move *move, bool *flows,
                         uint64_t *land_ps)
{
    load of = {.all = all, .lane = lane, .move = move};
    RETURN_IF_FAILED(count_bytes(&of));
    *flows = of.packets > 0;
    *land_ps = 0;
    if (!*flows)
        return BANYAN_OK;
    flow_begin(&all->sharing, lane);
    RETURN_IF_FAILED(sim_move_add_operands(&of));
    double amount = sim_move_heaviest(&of), seconds = sim_move_alone(&of, amount);
    uint32_t workers = resource_workers(all->topology, all->plan->rank_count, move->rank);
    bool elsewhere = move->by_port && !all->ranks[move->rank].kind->port_takes_block;
    bool added = elsewhere || flow_add(&all->sharing, lane, workers, seconds * BLOCK_SECOND);
    if (!added || !flow_go(&all->sharing, lane, amount, amount / seconds, all->now_ps))
        return BANYAN_ERR_NO_MEMORY;
    *land_ps = of.land_ps;
    return BANYAN_OK;
}

static banyan_status reach_operand(sim_engine *all, const sim_move *move,
                                   const plan_operand *operand, uint64_t *latency_ps)
{
    uint64_t there = 0, back;
    if (operand->place == PLAN_GROUP) {
        const plan_switch *group = plan_operand_group(all->plan, move->rank, move->block, operand);
        uint32_t middle;
        RETURN_IF_FAILED(sim_switch(all, move->rank, group, &middle));
        for (int m = 0; m < group->rank_count; m++) {
            RETURN_IF_FAILED(
                routes_require(&all->routes, (uint32_t)group->ranks[m], middle, &all->way));
            there = all->way.latency_ps > there ? all->way.latency_ps : there;
        }
        RETURN_IF_FAILED(routes_require(&all->routes, middle, (uint32_t)move->rank, &all->way));
        *latency_ps = 2 * (there + all->way.latency_ps);
        return BANYAN_OK;
    }
    int peer = plan_operand_where(all->plan, move->rank, move->block, move->op, operand).rank;
    RETURN_IF_FAILED(sim_latency(all, move->rank, peer, &there));
    RETURN_IF_FAILED(sim_latency(all, peer, move->rank, &back));
    *latency_ps = there + back;
    return BANYAN_OK;
}

banyan_status move_reach(sim_engine *all, const sim_move *move, uint64_t *latency_ps)
{
    uint64_t longest = 0;
    for (uint32_t i = 0; i < move->op->source_count && !sim_move_is_shared(all, move); i++) {
        uint64_t one = 0;
        if (move->op->sources[i].place == PLAN_LOCAL)
            continue;
        RETURN_IF_FAILED(reach_operand(all, move, &move->op->sources[i], &one));
        longest = one > longest ? one : longest;
    }
    *latency_ps = longest;
    return BANYAN_OK;
}

bool move_publishes(const sim_engine *all, const sim_move *move)
{
    bool others = false;
    for (uint32_t i = 0; i < move->op->destination_count && sim_move_is_shared(all, move); i++)
        others |= fraction_of_others(all, move, &move->op->destinations[i],
                                     plan_destination_is_packets(move->op, i), true) > 0;
    return others;
}
