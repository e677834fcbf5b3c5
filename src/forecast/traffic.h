/* The data that all ranks of a reshard send each other, and the moves that a service makes of it.
 */
#ifndef FORECAST_TRAFFIC_H
#define FORECAST_TRAFFIC_H

#include <banyan/forecast.h>

#include "copy/schedule/world.h"
#include "reshard/planner/once.h"

typedef struct traffic_rank {
    pipeline_world_task *tasks; /* by wave, peer and id */
    size_t task_count;
    uint64_t local_bytes;
} traffic_rank;

struct banyan_traffic {
    traffic_rank *ranks;
    banyan_traffic_info info;
    int ranks_per_node; /* 0: all ranks share a node */
    uint64_t turns;
    uint64_t least_bytes; /* between nodes */
};

static inline uint64_t traffic_wave_count(const banyan_traffic *traffic)
{
    return traffic->turns + 1;
}

static inline uint64_t traffic_wave_of(const banyan_traffic *traffic,
                                       const pipeline_world_task *task)
{
    return planner_wave_of(task->stage, task->turn, traffic->turns);
}

/* The tasks of one wave, within those of a rank. */
typedef struct traffic_slice {
    const pipeline_world_task *tasks;
    size_t count;
} traffic_slice;

traffic_slice traffic_wave(const banyan_traffic *traffic, int rank, uint64_t wave);

static inline uint64_t traffic_task_bytes(const pipeline_world_task *task)
{
    return task->task.elems * task->task.elem_bytes;
}

typedef ARRAY(banyan_move) move_list;

/* Make the moves of the pipeline's executors, and count batches and rounds. INVALID, NO_MEMORY. */
banyan_status moves_pipeline(const banyan_traffic *traffic, const banyan_forecast_options *options,
                             move_list *moves, banyan_forecast *counted);

#endif
