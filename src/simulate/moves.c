/* Simulated moves: in a lane they follow each other, and wait for moves of other lanes. */
#include <inttypes.h>
#include <math.h>

#include "core/error.h"
#include "simulate/engine/record.h"
#include "simulate/engine/sharing.h"
#include "simulate/simulation.h"
#include "simulate/topology/routes.h"

#define PS_PER_S 1e12
/* 53 days, more than any simulation is meant to cover. */
#define PS_MOST UINT64_C(4611686018427387904)

#define NO_NUMBER UINT32_MAX

/* State of a move. */
typedef struct move_state {
    uint64_t ready_ps;   /* earliest start */
    uint32_t cause;      /* the step that makes it ready; NO_STEP */
    uint32_t missing;    /* number of moves in `after` that are not done */
    uint32_t lane, next; /* in the lane; NO_NUMBER */
    uint32_t number;     /* among the lane's */
} move_state;

typedef enum lane_stage {
    LANE_WAITS,  /* waits for other moves, or has none left */
    LANE_BEGINS, /* in the agenda, until its move is ready and its fixed time is over */
    LANE_FLOWS
} lane_stage;

typedef struct move_lane {
    uint32_t at; /* its current move; NO_NUMBER after the last */
    lane_stage stage;
    uint64_t free_ps; /* when its last move was done */
    uint32_t last_step;
    uint64_t began_ps;
    uint32_t cause;
} move_lane;

typedef struct moves_run {
    const banyan_move *moves;
    uint32_t count;
    int ranks;
    const banyan_topology *topology;
    uint64_t grain_ps;
    move_state *states;
    move_lane *lanes;
    uint32_t lane_count;
    uint32_t *first_follower, *followers; /* for each move, the moves that have it in `after` */
    agenda agenda;
    sharing sharing;
    routes routes;
    route way;
    record record;
    uint64_t now_ps;
    uint64_t *ends_ps; /* of each rank */
    uint64_t settled_ps;
    bool ended, began; /* a flow ended or began since rates were computed */
} moves_run;

static banyan_status check_move(const moves_run *run, uint32_t number)
{
    const banyan_move *move = &run->moves[number];
    if (move->rank < 0 || move->rank >= run->ranks || move->peer < 0 || move->peer >= run->ranks)
        return error_set(BANYAN_ERR_INVALID, "move %" PRIu32 " is from rank %d to rank %d of %d",
                         number, move->rank, move->peer, run->ranks);
    /* Empty lanes would only take memory. */
    if (move->lane < 0 || (uint32_t)move->lane >= run->count)
        return error_set(BANYAN_ERR_INVALID,
                         "move %" PRIu32 " is in lane %d, and there are %" PRIu32 " moves", number,
                         move->lane, run->count);
    if (move->by != BANYAN_MOVE_BY_BLOCKS && move->by != BANYAN_MOVE_BY_PROXY)
        return error_set(BANYAN_ERR_INVALID, "move %" PRIu32 " has method %d, which does not exist",
                         number, (int)move->by);
    for (int i = 0; i < 2; i++) {
        if (move->after[i] != BANYAN_NO_MOVE && move->after[i] >= run->count)
            return error_set(BANYAN_ERR_INVALID,
                             "move %" PRIu32 " is after move %zu, and there are %" PRIu32, number,
                             move->after[i], run->count);
    }
    return BANYAN_OK;
}

/* firsts[rank]: the rank's first lane; one more entry, behind the last rank's. */
static banyan_status moves_list_count_lanes(moves_run *run, uint32_t *firsts)
{
    uint64_t lanes = 0;
    for (uint32_t i = 0; i < run->count; i++) {
        uint32_t *most = &firsts[run->moves[i].rank];
        uint32_t needed = (uint32_t)run->moves[i].lane + 1;
        *most = needed > *most ? needed : *most;
    }
    for (int r = 0; r <= run->ranks; r++) {
        uint32_t here = r < run->ranks ? firsts[r] : 0;
        firsts[r] = (uint32_t)lanes;
        lanes += here;
        if (lanes >= NO_NUMBER)
            return error_set(BANYAN_ERR_INVALID, "ranks 0 to %d have more lanes than are simulated",
                             r);
    }
    run->lane_count = (uint32_t)lanes;
    return BANYAN_OK;
}

/* Link from the last move to the first, so that each lane's list is in order. */
static banyan_status link_lanes(moves_run *run, const uint32_t *firsts)
{
    run->lanes = calloc(run->lane_count + (size_t)1, sizeof *run->lanes);
    if (!run->lanes)
        return error_no_memory(run->lane_count * sizeof *run->lanes, "the lanes of moves");
    for (uint32_t l = 0; l < run->lane_count; l++)
        run->lanes[l] = (move_lane){.at = NO_NUMBER, .last_step = NO_STEP, .cause = NO_STEP};
    for (uint32_t i = run->count; i-- > 0;) {
        uint32_t lane = firsts[run->moves[i].rank] + (uint32_t)run->moves[i].lane;
        run->states[i] = (move_state){.cause = NO_STEP, .lane = lane, .next = run->lanes[lane].at};
        run->lanes[lane].at = i;
    }
    for (uint32_t l = 0; l < run->lane_count; l++) {
        uint32_t number = 0;
        for (uint32_t m = run->lanes[l].at; m != NO_NUMBER; m = run->states[m].next)
            run->states[m].number = number++;
    }
    return BANYAN_OK;
}

static banyan_status link_followers(moves_run *run)
{
    size_t count = 0;
    run->first_follower = calloc(run->count + (size_t)2, sizeof *run->first_follower);
    if (!run->first_follower)
        return error_no_memory(run->count * sizeof *run->first_follower, "the order of moves");
    /* Store ends first: filling from the back turns them into beginnings. */
    for (uint32_t i = 0; i < run->count; i++) {
        for (int a = 0; a < 2; a++) {
            if (run->moves[i].after[a] == BANYAN_NO_MOVE)
                continue;
            run->first_follower[run->moves[i].after[a]]++;
            run->states[i].missing++;
            count++;
        }
    }
    if (count >= NO_NUMBER)
        return error_set(BANYAN_ERR_INVALID, "%zu orders between moves are more than are simulated",
                         count);
    run->followers = calloc(count + 1, sizeof *run->followers);
    if (!run->followers)
        return error_no_memory(count * sizeof *run->followers, "the order of moves");
    uint32_t sum = 0;
    for (uint32_t i = 0; i <= run->count; i++)
        run->first_follower[i] = sum += run->first_follower[i];
    for (uint32_t i = run->count; i-- > 0;) {
        for (int a = 0; a < 2; a++) {
            if (run->moves[i].after[a] != BANYAN_NO_MOVE)
                run->followers[--run->first_follower[run->moves[i].after[a]]] = i;
        }
    }
    return BANYAN_OK;
}

/* Build lanes and dependencies. INVALID, NO_MEMORY. */
static banyan_status moves_list(moves_run *run)
{
    for (uint32_t i = 0; i < run->count; i++)
        RETURN_IF_FAILED(check_move(run, i));
    uint32_t *firsts = calloc((size_t)run->ranks + 1, sizeof *firsts);
    run->states = calloc(run->count + (size_t)1, sizeof *run->states);
    banyan_status status = BANYAN_OK;
    if (!firsts || !run->states)
        status = error_no_memory(run->count * sizeof *run->states, "the state of moves");
    if (status == BANYAN_OK)
        status = moves_list_count_lanes(run, firsts);
    if (status == BANYAN_OK)
        status = link_lanes(run, firsts);
    if (status == BANYAN_OK)
        status = link_followers(run);
    free(firsts);
    return status;
}

static void moves_list_free(moves_run *run)
{
    free(run->states);
    free(run->lanes);
    free(run->first_follower);
    free(run->followers);
}

static const processor_kind *simulate_moves_kind_of(const moves_run *run, int rank)
{
    return run->topology->vertices.data[rank].kind;
}

/* Return the time before the first byte. */
static uint64_t fixed_ps(const moves_run *run, const banyan_move *move)
{
    const processor_kind *kind = simulate_moves_kind_of(run, move->rank);
    if (move->bytes == 0)
        return 0;
    return move->by == BANYAN_MOVE_BY_PROXY ? kind->request_ps : kind->launch_ps;
}

/* Return the seconds of one thread block, at the rates of data too large for caches. Its many
 * threads read and write concurrently; a core does one after the other. */
static double block_seconds(const moves_run *run, const banyan_move *move)
{
    const processor_kind *kind = simulate_moves_kind_of(run, move->rank);
    block_rates rates = rates_for(kind, INFINITY);
    double bytes = (double)move->bytes;
    if (move->rank == move->peer)
        return 2 * bytes / rates.local;
    double read = bytes / rates.local, written = bytes / rates.store;
    return kind->shared_memory ? read + written : fmax(read, written);
}

static bool add_uses(moves_run *run, uint32_t lane, const banyan_move *move)
{
    double bytes = (double)move->bytes;
    bool blocks = move->by == BANYAN_MOVE_BY_BLOCKS, added = true;
    double overhead = blocks ? simulate_moves_kind_of(run, move->rank)->store_overhead : 1;
    for (size_t i = 0; i < run->way.links.count; i++)
        added &= flow_add_framed(&run->sharing, lane, run->way.links.data[i], bytes, overhead);
    added &= flow_add(&run->sharing, lane, resource_memory(run->topology, move->rank), bytes);
    added &= flow_add(&run->sharing, lane, resource_memory(run->topology, move->peer), bytes);
    const processor_kind *kind = simulate_moves_kind_of(run, move->rank);
    double seconds = blocks ? block_seconds(run, move) : bytes / kind->port_bytes_per_s;
    if (blocks || kind->port_takes_block)
        added &=
            flow_add(&run->sharing, lane, resource_workers(run->topology, run->ranks, move->rank),
                     seconds * BLOCK_SECOND);
    return added;
}

/* Return the flow's rate without contention. A limit no higher than that keeps resources from
 * looking full that are not. */
static double rate_alone(const moves_run *run, uint32_t lane, const banyan_move *move)
{
    const flow *made = &run->sharing.flows[lane];
    double rate = move->by == BANYAN_MOVE_BY_PROXY
                      ? simulate_moves_kind_of(run, move->rank)->port_bytes_per_s
                      : INFINITY;
    for (size_t u = 0; u < made->uses.count; u++) {
        const flow_use *use = &made->uses.data[u];
        if (use->room > 0)
            rate = fmin(rate, run->sharing.resources[use->resource].bytes_per_s *
                                  (double)move->bytes / use->room);
    }
    return rate;
}

static banyan_status begin_flow(moves_run *run, uint32_t lane, const banyan_move *move)
{
    RETURN_IF_FAILED(
        routes_require(&run->routes, (uint32_t)move->rank, (uint32_t)move->peer, &run->way));
    flow_begin(&run->sharing, lane);
    if (!add_uses(run, lane, move) || !flow_go(&run->sharing, lane, (double)move->bytes,
                                               rate_alone(run, lane, move), run->now_ps))
        return BANYAN_ERR_NO_MEMORY;
    run->began = true;
    return BANYAN_OK;
}

/* Put the lane's move into the agenda when it waits for nothing. */
static void simulate_moves_look(moves_run *run, uint32_t number)
{
    move_lane *lane = &run->lanes[number];
    if (lane->stage != LANE_WAITS || lane->at == NO_NUMBER)
        return;
    const move_state *state = &run->states[lane->at];
    if (state->missing > 0)
        return;
    bool waited = state->ready_ps > lane->free_ps;
    lane->began_ps = waited ? state->ready_ps : lane->free_ps;
    lane->cause = waited ? state->cause : lane->last_step;
    lane->stage = LANE_BEGINS;
    uint64_t begin = lane->began_ps > run->now_ps ? lane->began_ps : run->now_ps;
    agenda_set(&run->agenda, number, begin + fixed_ps(run, &run->moves[lane->at]));
}

static banyan_status notify_follower(moves_run *run, uint32_t done, uint32_t step,
                                     uint32_t follower)
{
    move_state *state = &run->states[follower];
    int from = run->moves[done].rank, to = run->moves[follower].rank;
    uint64_t known_ps = run->now_ps;
    if (from != to) {
        RETURN_IF_FAILED(routes_require(&run->routes, (uint32_t)from, (uint32_t)to, &run->way));
        known_ps += run->way.latency_ps;
    }
    if (known_ps >= state->ready_ps) {
        state->ready_ps = known_ps;
        state->cause = step;
    }
    state->missing--;
    /* Only the current move of a lane can continue. */
    simulate_moves_look(run, state->lane);
    return BANYAN_OK;
}

static bool simulate_moves_note_step(moves_run *run, const move_lane *lane, uint32_t *step)
{
    const banyan_move *move = &run->moves[lane->at];
    step_record doing = {.began_ps = lane->began_ps,
                         .end_ps = run->now_ps,
                         .waited_ps = lane->began_ps - lane->free_ps,
                         .what = move->what,
                         .after = lane->cause,
                         .at = run->states[lane->at].number,
                         .inner = STEP_NOT_IN_LOOP,
                         .rank = move->rank,
                         .thread_block = (uint32_t)move->lane,
                         .proxy = move->by == BANYAN_MOVE_BY_PROXY};
    return record_add(&run->record, &doing, step);
}

static void note_end(moves_run *run, int rank, uint64_t time_ps)
{
    run->ends_ps[rank] = time_ps > run->ends_ps[rank] ? time_ps : run->ends_ps[rank];
}

static banyan_status end_move(moves_run *run, uint32_t number)
{
    move_lane *lane = &run->lanes[number];
    uint32_t done = lane->at, step;
    const banyan_move *move = &run->moves[done];
    if (!simulate_moves_note_step(run, lane, &step))
        return BANYAN_ERR_NO_MEMORY;
    RETURN_IF_FAILED(
        routes_require(&run->routes, (uint32_t)move->rank, (uint32_t)move->peer, &run->way));
    uint64_t arrived = run->now_ps + (move->bytes > 0 ? run->way.latency_ps : 0);
    note_end(run, move->rank, arrived);
    note_end(run, move->peer, arrived);
    lane->at = run->states[done].next;
    lane->stage = LANE_WAITS;
    lane->free_ps = run->now_ps;
    lane->last_step = step;
    for (uint32_t f = run->first_follower[done]; f < run->first_follower[done + 1]; f++)
        RETURN_IF_FAILED(notify_follower(run, done, step, run->followers[f]));
    simulate_moves_look(run, number);
    return BANYAN_OK;
}

static banyan_status simulate_moves_advance(moves_run *run, uint32_t number)
{
    move_lane *lane = &run->lanes[number];
    const banyan_move *move = &run->moves[lane->at];
    if (lane->stage == LANE_BEGINS && move->bytes > 0) {
        lane->stage = LANE_FLOWS;
        return begin_flow(run, number, move);
    }
    if (lane->stage == LANE_FLOWS) {
        if (!flow_end(&run->sharing, number, run->now_ps))
            return BANYAN_ERR_NO_MEMORY;
        run->ended = true;
    }
    return end_move(run, number);
}

/* Process ends first: other moves may wait for them. */
static uint64_t settle_due(const moves_run *run)
{
    if (run->began)
        return run->now_ps;
    return run->ended ? run->settled_ps + run->grain_ps : AGENDA_NEVER;
}

static banyan_status simulate_moves_settle(moves_run *run)
{
    run->began = run->ended = false;
    run->settled_ps = run->now_ps;
    return sharing_settle(&run->sharing, run->now_ps);
}

static void add_load(const moves_run *run, double *seconds, uint32_t number, uint64_t bytes)
{
    seconds[number] += (double)bytes / run->sharing.resources[number].bytes_per_s;
}

/* Compute the lower bound: the seconds for which the busiest link or memory is full. */
static banyan_status find_least(moves_run *run, double *least)
{
    size_t count = run->sharing.resource_count;
    double *seconds = calloc(count + 1, sizeof *seconds);
    banyan_status status = BANYAN_OK;
    if (!seconds)
        return error_no_memory(count * sizeof *seconds, "the loads of links");
    for (uint32_t i = 0; i < run->count && status == BANYAN_OK; i++) {
        const banyan_move *move = &run->moves[i];
        status =
            routes_require(&run->routes, (uint32_t)move->rank, (uint32_t)move->peer, &run->way);
        for (size_t l = 0; l < run->way.links.count; l++)
            add_load(run, seconds, run->way.links.data[l], move->bytes);
        add_load(run, seconds, resource_memory(run->topology, move->rank), move->bytes);
        add_load(run, seconds, resource_memory(run->topology, move->peer), move->bytes);
    }
    for (size_t i = 0; i < count; i++)
        *least = fmax(*least, seconds[i]);
    free(seconds);
    return status;
}

static banyan_status find_grain(moves_run *run, double share)
{
    double least = 0;
    if (share == 0)
        return BANYAN_OK;
    RETURN_IF_FAILED(find_least(run, &least));
    run->grain_ps = (uint64_t)fmin(share * least * PS_PER_S, (double)PS_MOST);
    return BANYAN_OK;
}

static banyan_status simulate_moves_check_finished(const moves_run *run)
{
    for (uint32_t l = 0; l < run->lane_count; l++) {
        if (run->lanes[l].at != NO_NUMBER)
            return error_set(BANYAN_ERR_MISMATCH,
                             "moves wait for each other: move %" PRIu32 ", in lane %d of rank %d, "
                             "cannot begin",
                             run->lanes[l].at, run->moves[run->lanes[l].at].lane,
                             run->moves[run->lanes[l].at].rank);
    }
    return BANYAN_OK;
}

static banyan_status simulate_moves_play(moves_run *run)
{
    for (uint32_t l = 0; l < run->lane_count; l++)
        simulate_moves_look(run, l);
    while (agenda_next(&run->agenda) != AGENDA_NEVER) {
        uint64_t next = agenda_next(&run->agenda), due = settle_due(run);
        if (due < next) {
            run->now_ps = due > run->now_ps ? due : run->now_ps;
            RETURN_IF_FAILED(simulate_moves_settle(run));
            continue;
        }
        run->now_ps = next;
        if (next > PS_MOST)
            return error_set(BANYAN_ERR_INVALID, "the moves take more than 53 days on topology %s",
                             run->topology->name);
        while (agenda_next(&run->agenda) == run->now_ps)
            RETURN_IF_FAILED(simulate_moves_advance(run, agenda_take(&run->agenda)));
        if (settle_due(run) <= run->now_ps)
            RETURN_IF_FAILED(simulate_moves_settle(run));
    }
    return simulate_moves_check_finished(run);
}

static banyan_status simulate_moves_prepare(moves_run *run, size_t count)
{
    const banyan_topology *topology = run->topology;
    if (run->ranks < 1 || (uint32_t)run->ranks > topology->processor_count)
        return error_set(BANYAN_ERR_INVALID, "%d ranks, and topology %s has %u processors",
                         run->ranks, topology->name, topology->processor_count);
    if (count >= NO_NUMBER)
        return error_set(BANYAN_ERR_INVALID, "%zu moves are more than are simulated", count);
    run->count = (uint32_t)count;
    run->ends_ps = calloc((size_t)run->ranks, sizeof *run->ends_ps);
    if (!run->ends_ps)
        return error_no_memory((size_t)run->ranks * sizeof *run->ends_ps, "a simulation");
    RETURN_IF_FAILED(moves_list(run));
    RETURN_IF_FAILED(agenda_make(run->lane_count, &run->agenda));
    RETURN_IF_FAILED(resources_make(topology, (uint32_t)run->ranks, run->lane_count, &run->agenda,
                                    &run->sharing));
    return routes_make(topology, &run->routes);
}

banyan_status banyan_moves_simulate(const banyan_move *moves, size_t count, int ranks,
                                    const banyan_topology *topology,
                                    const banyan_moves_options *given,
                                    banyan_simulation **simulation)
{
    banyan_moves_options options = BANYAN_MOVES_OPTIONS_INIT;
    RETURN_IF_FAILED(options_take(given, "BANYAN_MOVES_OPTIONS_INIT", &options, sizeof options));
    if (!(options.grain >= 0 && options.grain <= 1))
        return error_set(BANYAN_ERR_INVALID, "a grain of %g: 0 to 1 are possible", options.grain);
    moves_run run = {
        .moves = moves, .ranks = ranks, .topology = topology, .record.wanted = options.steps};
    banyan_status status = simulate_moves_prepare(&run, count);
    if (status == BANYAN_OK)
        status = find_grain(&run, options.grain);
    if (status == BANYAN_OK)
        status = simulate_moves_play(&run);
    if (status == BANYAN_OK)
        status =
            simulation_make(topology, ranks, &run.sharing, run.ends_ps, &run.record, simulation);
    array_free(&run.record.steps);
    routes_free(&run.routes);
    route_free(&run.way);
    sharing_free(&run.sharing);
    agenda_free(&run.agenda);
    free(run.ends_ps);
    moves_list_free(&run);
    return status;
}
