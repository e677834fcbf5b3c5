/* The data that all ranks of a reshard send each other, and the moves that a service makes of it.
 */
#ifndef FORECAST_TRAFFIC_H
#define FORECAST_TRAFFIC_H

#include <banyan/forecast.h>

#include "copy/schedule/world.h"

typedef struct traffic_rank {
    pipeline_world_task *tasks; /* by peer and id */
    size_t task_count;
    uint64_t local_bytes;
} traffic_rank;

struct banyan_traffic {
    traffic_rank *ranks;
    banyan_traffic_info info;
};

static inline uint64_t traffic_task_bytes(const pipeline_world_task *task)
{
    return task->task.elems * task->task.elem_bytes;
}

typedef ARRAY(banyan_move) move_list;

/* Make the moves of the pipeline's executors, and count batches and rounds. INVALID, NO_MEMORY. */
banyan_status moves_pipeline(const banyan_traffic *traffic, const banyan_forecast_options *options,
                             move_list *moves, banyan_forecast *counted);

#endif
