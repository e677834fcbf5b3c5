#include "simulate/engine/engine.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "simulate/simulation.h"

/* 53 days, more than any simulation is meant to cover. */
#define PS_MOST UINT64_C(4611686018427387904)
/* Limit of writers of packets, counted for every chunk. */
#define WRITERS_MOST (UINT64_C(1) << 24)

static waiters *take_waiters(sim_engine *all, size_t count)
{
    waiters *lists = arena_take(&all->memory, count * sizeof *lists);
    for (size_t i = 0; lists && i < count; i++)
        lists[i] = (waiters){NO_LANE, NO_LANE};
    return lists;
}

static bool make_rank(sim_engine *all, int r)
{
    const plan_rank *rank = &all->plan->ranks[r];
    sim_rank *made = &all->ranks[r];
    made->kind = all->topology->vertices.data[r].kind;
    made->for_packets = (waiters){NO_LANE, NO_LANE};
    made->switches =
        arena_take(&all->memory, rank->channel_count[PLAN_SWITCH] * sizeof *made->switches);
    if (!made->switches)
        return false;
    memset(made->switches, 0xff, rank->channel_count[PLAN_SWITCH] * sizeof(uint32_t));
    return true;
}

static void simulate_engine_make_lanes(sim_engine *all, int r)
{
    const plan_rank *rank = &all->plan->ranks[r];
    sim_rank *made = &all->ranks[r];
    for (uint32_t b = 0; b < rank->block_count; b++) {
        uint32_t lane = all->stepper.first_block[r] + b;
        all->blocks[lane] = (sim_block){.pos = &all->stepper.blocks[lane],
                                        .doing = {.after = NO_STEP,
                                                  .lane = lane,
                                                  .at = STEP_LAUNCH,
                                                  .inner = STEP_NOT_IN_LOOP,
                                                  .what = "launch",
                                                  .rank = r,
                                                  .thread_block = rank->blocks[b].id}};
        agenda_set(&all->agenda, lane, made->kind->launch_ps);
    }
    for (uint32_t c = 0; c < rank->channel_count[PLAN_PORT]; c++)
        all->ports[made->first_port - all->stepper.block_count + c] =
            (port_lane){.rank = r,
                        .channel = c,
                        .last_step = NO_STEP,
                        .acked = {0, NO_STEP},
                        .waiting = {NO_LANE, NO_LANE}};
}

/* Lanes of thread blocks come first, then those of port channels. */
static banyan_status simulate_engine_count_lanes(sim_engine *all)
{
    uint64_t lanes = all->stepper.block_count;
    for (int r = 0; r < all->plan->rank_count && lanes < NO_LANE; r++) {
        all->ranks[r].first_port = (uint32_t)lanes;
        lanes += all->plan->ranks[r].channel_count[PLAN_PORT];
    }
    if (lanes >= NO_LANE)
        return error_set(BANYAN_ERR_UNSUPPORTED,
                         "the plan has more thread blocks and port channels than are simulated");
    all->port_count = (uint32_t)lanes - all->stepper.block_count;
    return BANYAN_OK;
}

/* Between two uses of data in a ring, as much other data passes. */
#define RING_SHARE 2

/* Set the memory rates, which may depend on how much memory a rank touches. */
static banyan_status find_rates(sim_engine *all)
{
    bool cached = false;
    for (int r = 0; r < all->plan->rank_count; r++)
        cached |= all->ranks[r].kind->shared_memory || all->ranks[r].kind->rate_count > 1;
    if (cached)
        RETURN_IF_FAILED(caches_make(all->plan, &all->geometry, &all->caches));
    for (int r = 0; r < all->plan->rank_count; r++) {
        sim_rank *rank = &all->ranks[r];
        double working_set = cached ? (double)all->caches.working_sets[r] : 0;
        double ring = cached ? (double)all->caches.rings[r] : 0;
        rank->rates = rates_for(rank->kind, working_set);
        rank->ring_rates = rates_for(rank->kind, fmin(working_set, RING_SHARE * ring));
    }
    return BANYAN_OK;
}

static banyan_status simulate_engine_make_parts(sim_engine *all)
{
    const banyan_plan *plan = all->plan;
    RETURN_IF_FAILED(plan_stepper_make(plan, &all->geometry, &all->stepper));
    all->ranks = arena_zeroed(&all->memory, (size_t)plan->rank_count, sizeof *all->ranks);
    all->ends_ps = arena_zeroed(&all->memory, (size_t)plan->rank_count, sizeof *all->ends_ps);
    if (!all->ranks || !all->ends_ps)
        return BANYAN_ERR_NO_MEMORY;
    RETURN_IF_FAILED(simulate_engine_count_lanes(all));
    for (int r = 0; r < plan->rank_count; r++) {
        if (!make_rank(all, r))
            return BANYAN_ERR_NO_MEMORY;
    }
    all->blocks = arena_zeroed(&all->memory, all->stepper.block_count, sizeof *all->blocks);
    all->ports = arena_zeroed(&all->memory, all->port_count, sizeof *all->ports);
    all->token_waiters = take_waiters(all, all->stepper.counter_count);
    all->barrier_waiters = take_waiters(all, all->stepper.barriers.count);
    if (!all->blocks || !all->ports || !all->token_waiters || !all->barrier_waiters)
        return BANYAN_ERR_NO_MEMORY;
    RETURN_IF_FAILED(agenda_make(all->stepper.block_count + all->port_count, &all->agenda));
    RETURN_IF_FAILED(resources_make(all->topology, (uint32_t)plan->rank_count,
                                    all->stepper.block_count + all->port_count, &all->agenda,
                                    &all->sharing));
    for (int r = 0; r < plan->rank_count; r++)
        simulate_engine_make_lanes(all, r);
    RETURN_IF_FAILED(routes_make(all->topology, &all->routes));
    RETURN_IF_FAILED(find_rates(all));
    RETURN_IF_FAILED(packet_writers_make(plan, &all->geometry, WRITERS_MOST, &all->packets));
    if (all->packets.too_many)
        return error_set(BANYAN_ERR_UNSUPPORTED,
                         "the plan writes packets to more than %llu chunks, too many to simulate",
                         (unsigned long long)WRITERS_MOST);
    return BANYAN_OK;
}

/* Return the smallest unit in which a loop of the plan steps. */
static uint64_t smallest_unit(const banyan_plan *plan)
{
    uint64_t unit = UINT64_MAX;
    for (plan_cursor at = {.plan = plan}; plan_cursor_next(&at);) {
        if (at.op->kind == PLAN_PIPELINE && at.op->unit_bytes < unit)
            unit = at.op->unit_bytes;
    }
    return unit;
}

/* Refuse plans whose loops would take days: a small file can ask for any number of iterations. */
static banyan_status refuse_too_many_steps(const sim_engine *of,
                                           const banyan_simulate_options *options)
{
    uint64_t steps = plan_geometry_loop_steps(&of->geometry, of->plan);
    if (steps <= options->max_steps)
        return BANYAN_OK;
    return error_set(BANYAN_ERR_UNSUPPORTED,
                     "plan %s makes %" PRIu64 " steps in its loops, in units of %" PRIu64
                     " bytes, with a message of %" PRIu64 " bytes: at most %" PRIu64
                     " are simulated, unless max_steps (--max-steps) says more",
                     of->plan->name, steps, smallest_unit(of->plan), options->message_bytes,
                     options->max_steps);
}

banyan_status sim_make(const banyan_plan *plan, const banyan_topology *topology,
                       const banyan_simulate_options *options, sim_engine *made)
{
    *made = (sim_engine){.plan = plan, .topology = topology, .record.wanted = options->steps};
    if ((uint32_t)plan->rank_count > topology->processor_count)
        return error_set(BANYAN_ERR_INVALID,
                         "plan %s has %d ranks, and topology %s has %u processors", plan->name,
                         plan->rank_count, topology->name, topology->processor_count);
    RETURN_IF_FAILED(
        plan_geometry_make(plan, options->message_bytes, options->elem_bytes, &made->geometry));
    RETURN_IF_FAILED(refuse_too_many_steps(made, options));
    return simulate_engine_make_parts(made);
}

/* Thread blocks of a chain that the message lists. */
#define LINKS_MOST 6

static size_t describe_wait(const sim_engine *all, uint32_t lane, char *text, size_t room)
{
    const plan_position *pos = &all->stepper.blocks[lane];
    char where[48] = "", what[PLAN_WANT_BYTES];
    if (plan_position_loop(pos))
        snprintf(where, sizeof where, ".%" PRIu32 " in iteration %" PRIu64, pos->inner,
                 pos->iteration);
    plan_stepper_describe(&all->stepper, pos, what);
    int written = snprintf(
        text, room, "rank %d, thread block %" PRIu32 ", operation %" PRIu32 "%s (%s) waits for %s",
        pos->rank, pos->block->id, pos->at, where, plan_op_name(plan_position_op(pos)->kind), what);
    return written < 0 || (size_t)written >= room ? room - 1 : (size_t)written;
}

/* Format the message for a plan that hangs. */
static banyan_status sim_hangs(const sim_engine *all)
{
    char text[1024];
    size_t used = 0;
    uint32_t lane = 0, first;
    while (plan_position_ended(&all->stepper.blocks[lane]))
        lane++;
    first = lane;
    for (int links = 0; links < LINKS_MOST; links++) {
        used += describe_wait(all, lane, text + used, sizeof text - used);
        lane = plan_stepper_helper(&all->stepper, &all->stepper.blocks[lane]);
        const char *then = lane == PLAN_NONE ? ", which nobody does any more" : "; ";
        then = lane == first ? ": a circle" : then;
        used += (size_t)snprintf(text + used, sizeof text - used, "%s",
                                 links + 1 == LINKS_MOST && lane != PLAN_NONE ? "; …" : then);
        if (used >= sizeof text)
            used = sizeof text - 1;
        if (lane == PLAN_NONE || lane == first)
            break;
    }
    return error_set(BANYAN_ERR_MISMATCH, "plan %s hangs: %s", all->plan->name, text);
}

banyan_status sim_run(sim_engine *all)
{
    while (agenda_next(&all->agenda) != AGENDA_NEVER) {
        all->now_ps = agenda_next(&all->agenda);
        if (all->now_ps > PS_MOST)
            return error_set(BANYAN_ERR_INVALID, "plan %s takes more than 53 days on topology %s",
                             all->plan->name, all->topology->name);
        while (agenda_next(&all->agenda) == all->now_ps) {
            uint32_t lane = agenda_take(&all->agenda);
            RETURN_IF_FAILED(lane < all->stepper.block_count ? block_advance(all, lane)
                                                             : port_advance(all, lane));
        }
        RETURN_IF_FAILED(sharing_settle(&all->sharing, all->now_ps));
    }
    for (uint32_t lane = 0; lane < all->stepper.block_count; lane++) {
        if (!plan_position_ended(&all->stepper.blocks[lane]))
            return sim_hangs(all);
    }
    return BANYAN_OK;
}

void sim_free(sim_engine *old)
{
    for (uint32_t i = 0; old->ports && i < old->port_count; i++)
        array_free(&old->ports[i].requests);
    plan_stepper_free(&old->stepper);
    routes_free(&old->routes);
    route_free(&old->way);
    agenda_free(&old->agenda);
    sharing_free(&old->sharing);
    packet_writers_free(&old->packets);
    caches_free(&old->caches);
    array_free(&old->record.steps);
    arena_free(&old->memory);
}
