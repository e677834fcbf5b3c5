#include "forecast/traffic.h"

#include "forecast/least.h"
#include "reshard/model/model.h"
#include "reshard/planner/once.h"
#include "reshard/planner/sample.h"

typedef struct planning_traffic {
    banyan_traffic *traffic;
    const banyan_reshard_sample_world *world;
    least_network least;
    bool counts_least;
} planning_traffic;

/* Keep only the requests to a service: transfers are many, and large. */
static banyan_status traffic_take_rank(void *context, int rank, planner_result *result)
{
    planning_traffic *planning = context;
    traffic_rank *of = &planning->traffic->ranks[rank];
    uint64_t turns = planner_turns_wanted(result, rank);
    if (turns > planning->traffic->turns)
        planning->traffic->turns = turns;
    for (size_t i = 0; i < result->recv_count; i++) {
        const banyan_transfer *received = &result->recvs[i];
        if (received->source_rank == rank)
            of->local_bytes += received->bytes;
    }
    banyan_status status = planner_tasks_sent(result, &of->tasks, &of->task_count);
    if (status == BANYAN_OK && planning->counts_least)
        status = least_network_add(&planning->least, planning->world, rank, result);
    planner_result_free(result);
    return status;
}

static int compare_waves(const void *left, const void *right, void *context)
{
    const pipeline_world_task *a = left, *b = right;
    const banyan_traffic *traffic = context;
    uint64_t first = traffic_wave_of(traffic, a), second = traffic_wave_of(traffic, b);
    RETURN_IF_UNEQUAL(first, second);
    RETURN_IF_UNEQUAL(a->peer, b->peer);
    return COMPARE(a->id, b->id);
}

/* Sort by waves, once their number is known. */
static void sort_waves(banyan_traffic *traffic)
{
    for (int r = 0; r < traffic->info.ranks && traffic->turns > 0; r++)
        qsort_r(traffic->ranks[r].tasks, traffic->ranks[r].task_count,
                sizeof *traffic->ranks[r].tasks, compare_waves, traffic);
}

traffic_slice traffic_wave(const banyan_traffic *traffic, int rank, uint64_t wave)
{
    const traffic_rank *of = &traffic->ranks[rank];
    size_t first = BISECT(i, 0, of->task_count, traffic_wave_of(traffic, &of->tasks[i]) < wave);
    size_t end = BISECT(i, first, of->task_count, traffic_wave_of(traffic, &of->tasks[i]) <= wave);
    return (traffic_slice){of->tasks + first, end - first};
}

static banyan_status traffic_count_up(banyan_traffic *traffic)
{
    banyan_traffic_info *info = &traffic->info;
    uint64_t *received = calloc((size_t)info->ranks, sizeof *received);
    if (!received)
        return error_no_memory((size_t)info->ranks * sizeof *received, "a world's traffic");
    for (int r = 0; r < info->ranks; r++) {
        const traffic_rank *of = &traffic->ranks[r];
        uint64_t sent = 0;
        for (size_t i = 0; i < of->task_count; i++) {
            sent += traffic_task_bytes(&of->tasks[i]);
            received[of->tasks[i].peer] += traffic_task_bytes(&of->tasks[i]);
            info->pairs += i == 0 || of->tasks[i].peer != of->tasks[i - 1].peer;
        }
        info->transfers += of->task_count;
        info->bytes += sent;
        info->local_bytes += of->local_bytes;
        info->most_sent = sent > info->most_sent ? sent : info->most_sent;
    }
    for (int r = 0; r < info->ranks; r++)
        info->most_received = received[r] > info->most_received ? received[r] : info->most_received;
    free(received);
    return BANYAN_OK;
}

banyan_status banyan_traffic_plan(const banyan_reshard_sample_world *world,
                                  const banyan_reshard_options *options, banyan_traffic **traffic)
{
    if (world->world_size < 1 || world->world_size > BANYAN_MAX_RANKS)
        return error_set(BANYAN_ERR_INVALID, "the traffic of %d ranks: 1 to %d are possible",
                         world->world_size, BANYAN_MAX_RANKS);
    size_t ranks = (size_t)world->world_size;
    banyan_traffic *made = calloc(1, sizeof *made);
    if (made)
        made->ranks = calloc(ranks, sizeof *made->ranks);
    if (!made || !made->ranks) {
        free(made);
        return error_no_memory(ranks * sizeof *made->ranks, "a world's traffic");
    }
    made->info.ranks = world->world_size;
    made->ranks_per_node = world->ranks_per_node;
    planning_traffic planning = {
        .traffic = made,
        .world = world,
        .counts_least = world->ranks_per_node > 0 && !(options && options->transform),
    };
    banyan_status status = planner_imagine(world, options, traffic_take_rank, &planning);
    if (status == BANYAN_OK && planning.counts_least)
        status = least_network_finish(&planning.least, &made->least_bytes);
    least_network_free(&planning.least);
    if (status == BANYAN_OK)
        status = traffic_count_up(made);
    sort_waves(made);
    if (status != BANYAN_OK) {
        banyan_traffic_destroy(made);
        return status;
    }
    *traffic = made;
    return BANYAN_OK;
}

static banyan_status layouts_of_case(void *context, int rank, banyan_layout *source,
                                     banyan_layout *destination)
{
    RETURN_IF_FAILED(case_add_layout(context, rank, BANYAN_SOURCE, source));
    return case_add_layout(context, rank, BANYAN_DESTINATION, destination);
}

banyan_status banyan_traffic_plan_case(const banyan_megatron_case *loaded,
                                       const banyan_reshard_options *options,
                                       banyan_traffic **traffic)
{
    const banyan_reshard_sample_world world = {.world_size =
                                                   banyan_megatron_case_world_size(loaded),
                                               .layouts = layouts_of_case,
                                               .context = (void *)(uintptr_t)loaded};
    return banyan_traffic_plan(&world, options, traffic);
}

void banyan_traffic_destroy(banyan_traffic *traffic)
{
    if (!traffic)
        return;
    for (int r = 0; r < traffic->info.ranks; r++)
        free(traffic->ranks[r].tasks);
    free(traffic->ranks);
    free(traffic);
}

banyan_traffic_info banyan_traffic_describe(const banyan_traffic *traffic)
{
    return traffic->info;
}
