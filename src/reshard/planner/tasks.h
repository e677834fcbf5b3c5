/* A rank's transfers as the copy service sees them: bytes per peer, in order. */
#ifndef RESHARD_PLANNER_TASKS_H
#define RESHARD_PLANNER_TASKS_H

#include "copy/schedule/world.h"
#include "reshard/planner/rank.h"

/* List the tasks of every send to another rank, sorted; to be freed. NO_MEMORY. */
banyan_status plan_tasks_sent(const planner_result *transfers, pipeline_world_task **tasks,
                              size_t *count);

#endif
