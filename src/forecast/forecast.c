#include "core/error.h"
#include "forecast/traffic.h"

#define SLOT_BYTES (UINT64_C(16) << 20)
/* All pairs of ranks move at once, and each end may change the rates of all others. With more pairs
 * than this the simulation uses a time grain that grows with them, so that its time does not grow
 * with their square. */
#define EXACT_PAIRS 1000
#define PAIRS_A_GRAIN 5e7

enum { END_LANE, FIRST_LANE };

static double grain_of(const banyan_traffic *traffic, const banyan_forecast_options *options)
{
    double pairs = (double)traffic->info.pairs;
    if (options->service != BANYAN_FORECAST_DIRECT || pairs <= EXACT_PAIRS)
        return 0;
    return pairs < PAIRS_A_GRAIN ? pairs / PAIRS_A_GRAIN : 1;
}

/* A network card takes data between nodes, and thread blocks inside a node. */
static bool crosses(const banyan_traffic *traffic, int rank, int peer)
{
    int each = traffic->ranks_per_node;
    return each > 0 && rank / each != peer / each;
}

/* Add one move for each partner of a wave. Each has its own lane: all begin at once, when both ends
 * have ended the wave before. `done` has its last move for each rank. */
static banyan_status moves_direct_add_rank(const banyan_traffic *traffic, int rank, uint64_t wave,
                                           const size_t *done, move_list *moves)
{
    traffic_slice of = traffic_wave(traffic, rank, wave);
    banyan_move next = {.rank = rank,
                        .peer = rank,
                        .lane = traffic->turns > 0 ? FIRST_LANE : 0,
                        .by = BANYAN_MOVE_BY_BLOCKS,
                        .what = "copy",
                        .bytes = wave == 0 ? traffic->ranks[rank].local_bytes : 0,
                        .after = {done[rank], BANYAN_NO_MOVE}};
    if (next.bytes > 0 && !array_push(moves, next))
        return BANYAN_ERR_NO_MEMORY;
    for (size_t i = 0; i < of.count;) {
        next.lane += next.bytes > 0;
        next.peer = of.tasks[i].peer;
        next.after[1] = done[next.peer];
        next.by = crosses(traffic, rank, next.peer) ? BANYAN_MOVE_BY_PROXY : BANYAN_MOVE_BY_BLOCKS;
        next.bytes = 0;
        for (; i < of.count && of.tasks[i].peer == next.peer; i++)
            next.bytes += traffic_task_bytes(&of.tasks[i]);
        if (!array_push(moves, next))
            return BANYAN_ERR_NO_MEMORY;
    }
    return BANYAN_OK;
}

/* A move of no bytes, in its rank's own lane for these, ends after another one. */
static bool end_after(int rank, size_t move, size_t *done, move_list *moves)
{
    done[rank] = moves->count;
    return array_push(moves, (banyan_move){.rank = rank,
                                           .peer = rank,
                                           .lane = END_LANE,
                                           .by = BANYAN_MOVE_BY_BLOCKS,
                                           .what = "end of a wave",
                                           .after = {move, BANYAN_NO_MOVE}});
}

/* A rank ends a wave with the last of its moves, in either direction. */
static banyan_status moves_direct(const banyan_traffic *traffic, move_list *moves)
{
    size_t ranks = (size_t)traffic->info.ranks;
    size_t *done = alloc_zeroed(ranks, sizeof *done, "the ends of waves");
    RETURN_IF_NO_MEMORY(done);
    for (size_t r = 0; r < ranks; r++)
        done[r] = BANYAN_NO_MOVE;
    banyan_status status = BANYAN_OK;
    for (uint64_t wave = 0; wave < traffic_wave_count(traffic) && status == BANYAN_OK; wave++) {
        size_t first = moves->count;
        for (size_t r = 0; r < ranks && status == BANYAN_OK; r++)
            status = moves_direct_add_rank(traffic, (int)r, wave, done, moves);
        size_t end = wave < traffic->turns ? moves->count : first;
        for (size_t i = first; i < end && status == BANYAN_OK; i++) {
            int rank = moves->data[i].rank, peer = moves->data[i].peer;
            if (!end_after(rank, i, done, moves) ||
                (peer != rank && !end_after(peer, i, done, moves)))
                status = BANYAN_ERR_NO_MEMORY;
        }
    }
    free(done);
    return status;
}

static banyan_status make_moves(const banyan_traffic *traffic,
                                const banyan_forecast_options *options, move_list *moves,
                                banyan_forecast *found)
{
    if (options->service == BANYAN_FORECAST_DIRECT)
        return moves_direct(traffic, moves);
    found->slot_bytes = options->slot_bytes;
    return moves_pipeline(traffic, options, moves, found);
}

static void find_critical(const banyan_simulation *of, int ranks, banyan_forecast *found)
{
    double latest = -1;
    found->seconds = banyan_simulation_seconds(of);
    for (int r = 0; r < ranks; r++) {
        double end = banyan_simulation_rank_seconds(of, r);
        if (end > latest)
            found->critical_rank = r;
        latest = end > latest ? end : latest;
    }
}

banyan_status banyan_traffic_simulate(const banyan_traffic *traffic,
                                      const banyan_topology *topology,
                                      const banyan_forecast_options *given,
                                      banyan_forecast *forecast, banyan_simulation **simulation)
{
    banyan_forecast_options options = BANYAN_FORECAST_OPTIONS_INIT;
    banyan_moves_options how = BANYAN_MOVES_OPTIONS_INIT;
    RETURN_IF_FAILED(options_take(given, "BANYAN_FORECAST_OPTIONS_INIT", &options, sizeof options));
    if (options.service != BANYAN_FORECAST_DIRECT && options.service != BANYAN_FORECAST_PIPELINE)
        return error_set(BANYAN_ERR_INVALID, "there is no copy service %d", (int)options.service);
    if (options.slot_bytes == 0)
        options.slot_bytes = SLOT_BYTES;
    how.steps = options.steps;
    how.grain = grain_of(traffic, &options);
    banyan_forecast found = {0};
    banyan_simulation *made = NULL;
    move_list moves = {0};
    banyan_status status = make_moves(traffic, &options, &moves, &found);
    if (status == BANYAN_OK)
        status = banyan_moves_simulate(moves.data, moves.count, traffic->info.ranks, topology, &how,
                                       &made);
    array_free(&moves);
    if (status != BANYAN_OK)
        return status;
    find_critical(made, traffic->info.ranks, &found);
    if (simulation)
        *simulation = made;
    else
        banyan_simulation_destroy(made);
    *forecast = found;
    return BANYAN_OK;
}
