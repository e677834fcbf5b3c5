/* A rank's transfers as the copy service sees them: how much goes to whom, in which order. */
#ifndef RESHARD_PLANNER_TASKS_H
#define RESHARD_PLANNER_TASKS_H

#include "copy/schedule/world.h"
#include "reshard/planner/rank.h"

/* Of every send but those to oneself, sorted: to be freed. NO_MEMORY. */
banyan_status plan_tasks_sent(const planner_result *transfers, pipeline_world_task **tasks,
                              size_t *count);

#endif
