#include "core/error.h"
#include "forecast/traffic.h"

#define SLOT_BYTES (UINT64_C(16) << 20)
/* All pairs of ranks move at once, and each end may change the rates of all others. With more pairs
 * than this the simulation uses a time grain that grows with them, so that its time does not grow
 * with their square. */
#define EXACT_PAIRS 1000
#define PAIRS_A_GRAIN 5e7

static double grain_of(const banyan_traffic *traffic, const banyan_forecast_options *options)
{
    double pairs = (double)traffic->info.pairs;
    if (options->service != BANYAN_FORECAST_DIRECT || pairs <= EXACT_PAIRS)
        return 0;
    return pairs < PAIRS_A_GRAIN ? pairs / PAIRS_A_GRAIN : 1;
}

/* Each pair of ranks has its own lane: all begin at once. */
static banyan_status moves_direct_add_rank(const traffic_rank *of, int rank, move_list *moves)
{
    banyan_move next = {.rank = rank,
                        .peer = rank,
                        .by = BANYAN_MOVE_BY_BLOCKS,
                        .what = "copy",
                        .bytes = of->local_bytes,
                        .after = {BANYAN_NO_MOVE, BANYAN_NO_MOVE}};
    if (next.bytes > 0 && !array_push(moves, next))
        return BANYAN_ERR_NO_MEMORY;
    for (size_t i = 0; i < of->task_count;) {
        next.lane += next.bytes > 0;
        next.peer = of->tasks[i].peer;
        next.bytes = 0;
        for (; i < of->task_count && of->tasks[i].peer == next.peer; i++)
            next.bytes += traffic_task_bytes(&of->tasks[i]);
        if (!array_push(moves, next))
            return BANYAN_ERR_NO_MEMORY;
    }
    return BANYAN_OK;
}

static banyan_status make_moves(const banyan_traffic *traffic,
                                const banyan_forecast_options *options, move_list *moves,
                                banyan_forecast *found)
{
    bool direct = options->service == BANYAN_FORECAST_DIRECT;
    for (int r = 0; r < traffic->info.ranks && direct; r++)
        RETURN_IF_FAILED(moves_direct_add_rank(&traffic->ranks[r], r, moves));
    if (direct)
        return BANYAN_OK;
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
