#include "simulate/engine/engine.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "simulate/topology/resources.h"

/* 53 days, more than any simulation is meant to cover. */
#define PS_MOST UINT64_C(4611686018427387904)
/* Limit of writers of packets, counted for every chunk. */
#define WRITERS_MOST (UINT64_C(1) << 24)

static void *simulate_engine_take_zeroed(engine *all, size_t count, size_t bytes)
{
    void *taken = arena_take(&all->memory, count * bytes);
    return taken ? memset(taken, 0, count * bytes) : NULL;
}

static tokens *take_tokens(engine *all, uint32_t count)
{
    tokens *list = simulate_engine_take_zeroed(all, count, sizeof *list);
    for (uint32_t i = 0; list && i < count; i++)
        list[i].waiting = (waiters){NO_LANE, NO_LANE};
    return list;
}

/* ---- beginning ---- */

static bool make_rank(engine *all, int r)
{
    const plan_rank *rank = &all->plan->ranks[r];
    sim_rank *made = &all->ranks[r];
    made->kind = all->topology->vertices.data[r].kind;
    made->for_packets = (waiters){NO_LANE, NO_LANE};
    made->signals[PLAN_MEMORY] = take_tokens(all, rank->channel_count[PLAN_MEMORY]);
    made->signals[PLAN_PORT] = take_tokens(all, rank->channel_count[PLAN_PORT]);
    made->semaphores = take_tokens(all, rank->semaphore_count);
    made->switches =
        simulate_engine_take_zeroed(all, rank->channel_count[PLAN_SWITCH], sizeof(uint32_t));
    if (!made->signals[PLAN_MEMORY] || !made->signals[PLAN_PORT] || !made->semaphores ||
        !made->switches)
        return false;
    for (uint32_t i = 0; i < rank->semaphore_count; i++)
        made->semaphores[i].initial = rank->semaphores[i];
    memset(made->switches, 0xff, rank->channel_count[PLAN_SWITCH] * sizeof(uint32_t));
    return true;
}

static void simulate_engine_make_lanes(engine *all, int r)
{
    const plan_rank *rank = &all->plan->ranks[r];
    sim_rank *made = &all->ranks[r];
    for (uint32_t b = 0; b < rank->block_count; b++) {
        uint32_t lane = made->first_block + b;
        all->blocks[lane] = (sim_block){.rank = r,
                                        .block = &rank->blocks[b],
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
        all->ports[made->first_port - all->block_count + c] =
            (port_lane){.rank = r,
                        .channel = c,
                        .last_step = NO_STEP,
                        .acked = {0, NO_STEP},
                        .waiting = {NO_LANE, NO_LANE}};
}

/* Lanes of thread blocks come first, then those of port channels. */
static banyan_status simulate_engine_count_lanes(engine *all)
{
    uint64_t lanes = 0;
    for (int r = 0; r < all->plan->rank_count; r++) {
        all->ranks[r].first_block = (uint32_t)lanes;
        lanes += all->plan->ranks[r].block_count;
        all->block_count = (uint32_t)lanes;
        if (lanes >= NO_LANE)
            break;
    }
    for (int r = 0; r < all->plan->rank_count && lanes < NO_LANE; r++) {
        all->ranks[r].first_port = (uint32_t)lanes;
        lanes += all->plan->ranks[r].channel_count[PLAN_PORT];
    }
    if (lanes >= NO_LANE)
        return error_set(BANYAN_ERR_UNSUPPORTED,
                         "the plan has more thread blocks and port channels than are simulated");
    all->port_count = (uint32_t)lanes - all->block_count;
    return BANYAN_OK;
}

/* Between two uses of data in a ring, as much other data passes. */
#define RING_SHARE 2

/* Set the memory rates, which may depend on how much memory a rank touches. */
static banyan_status find_rates(engine *all)
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

static banyan_status simulate_engine_make_parts(engine *all)
{
    const banyan_plan *plan = all->plan;
    all->ranks = simulate_engine_take_zeroed(all, (size_t)plan->rank_count, sizeof *all->ranks);
    all->ends_ps = simulate_engine_take_zeroed(all, (size_t)plan->rank_count, sizeof *all->ends_ps);
    if (!all->ranks || !all->ends_ps)
        return BANYAN_ERR_NO_MEMORY;
    RETURN_IF_FAILED(simulate_engine_count_lanes(all));
    for (int r = 0; r < plan->rank_count; r++) {
        if (!make_rank(all, r))
            return BANYAN_ERR_NO_MEMORY;
    }
    all->blocks = simulate_engine_take_zeroed(all, all->block_count, sizeof *all->blocks);
    all->ports = simulate_engine_take_zeroed(all, all->port_count, sizeof *all->ports);
    if (!all->blocks || !all->ports)
        return BANYAN_ERR_NO_MEMORY;
    RETURN_IF_FAILED(agenda_make(all->block_count + all->port_count, &all->agenda));
    RETURN_IF_FAILED(resources_make(all->topology, (uint32_t)plan->rank_count,
                                    all->block_count + all->port_count, &all->agenda,
                                    &all->sharing));
    for (int r = 0; r < plan->rank_count; r++)
        simulate_engine_make_lanes(all, r);
    RETURN_IF_FAILED(plan_pairs_make(plan, &all->pairs));
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
    for (int r = 0; r < plan->rank_count; r++) {
        for (uint32_t b = 0; b < plan->ranks[r].block_count; b++) {
            const plan_thread_block *block = &plan->ranks[r].blocks[b];
            for (uint32_t i = 0; i < block->op_count; i++) {
                const plan_op *op = &block->ops[i];
                if (op->kind == PLAN_PIPELINE && op->unit_bytes < unit)
                    unit = op->unit_bytes;
            }
        }
    }
    return unit;
}

/* Refuse plans whose loops would take days: a small file can ask for any number of iterations. */
static banyan_status refuse_too_many_steps(const engine *of, const banyan_simulate_options *options)
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

banyan_status engine_make(const banyan_plan *plan, const banyan_topology *topology,
                          const banyan_simulate_options *options, engine *made)
{
    *made = (engine){.plan = plan, .topology = topology, .record.wanted = options->steps};
    if ((uint32_t)plan->rank_count > topology->processor_count)
        return error_set(BANYAN_ERR_INVALID,
                         "plan %s has %d ranks, and topology %s has %u processors", plan->name,
                         plan->rank_count, topology->name, topology->processor_count);
    RETURN_IF_FAILED(
        plan_geometry_make(plan, options->message_bytes, options->elem_bytes, &made->geometry));
    RETURN_IF_FAILED(refuse_too_many_steps(made, options));
    return simulate_engine_make_parts(made);
}

/* ---- the run ---- */

static banyan_status simulate_engine_advance(engine *all, uint32_t lane)
{
    return lane < all->block_count ? block_advance(all, lane) : port_advance(all, lane);
}

static banyan_status simulate_engine_check_finished(const engine *all)
{
    for (uint32_t lane = 0; lane < all->block_count; lane++) {
        if (all->blocks[lane].at < all->blocks[lane].block->op_count)
            return engine_hangs(all);
    }
    return BANYAN_OK;
}

banyan_status engine_run(engine *all)
{
    while (agenda_next(&all->agenda) != AGENDA_NEVER) {
        all->now_ps = agenda_next(&all->agenda);
        if (all->now_ps > PS_MOST)
            return error_set(BANYAN_ERR_INVALID, "plan %s takes more than 53 days on topology %s",
                             all->plan->name, all->topology->name);
        while (agenda_next(&all->agenda) == all->now_ps)
            RETURN_IF_FAILED(simulate_engine_advance(all, agenda_take(&all->agenda)));
        RETURN_IF_FAILED(sharing_settle(&all->sharing, all->now_ps));
    }
    return simulate_engine_check_finished(all);
}

/* ---- the end ---- */

static void simulate_engine_free_tokens(tokens *list, uint32_t count)
{
    for (uint32_t i = 0; list && i < count; i++)
        array_free(&list[i].come);
}

void engine_free(engine *old)
{
    for (int r = 0; old->ranks && r < old->plan->rank_count; r++) {
        const plan_rank *rank = &old->plan->ranks[r];
        simulate_engine_free_tokens(old->ranks[r].signals[PLAN_MEMORY],
                                    rank->channel_count[PLAN_MEMORY]);
        simulate_engine_free_tokens(old->ranks[r].signals[PLAN_PORT],
                                    rank->channel_count[PLAN_PORT]);
        simulate_engine_free_tokens(old->ranks[r].semaphores, rank->semaphore_count);
    }
    for (uint32_t i = 0; old->ports && i < old->port_count; i++)
        array_free(&old->ports[i].requests);
    plan_pairs_free(&old->pairs);
    routes_free(&old->routes);
    route_free(&old->way);
    agenda_free(&old->agenda);
    sharing_free(&old->sharing);
    packet_writers_free(&old->packets);
    caches_free(&old->caches);
    array_free(&old->record.steps);
    plan_barrier_numbers_free(&old->meetings);
    array_free(&old->meeting_list);
    arena_free(&old->memory);
}
