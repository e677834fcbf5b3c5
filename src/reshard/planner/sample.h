/* Plan every rank of an imagined world, for callers that inspect the transfers. */
#ifndef RESHARD_PLANNER_SAMPLE_H
#define RESHARD_PLANNER_SAMPLE_H

#include "reshard/planner/rank.h"

/* Take over a rank's transfers. */
typedef banyan_status (*plan_take_fn)(void *context, int rank, planner_result *result);

/* Plan all ranks to the end, one after another. Errors as banyan_reshard_plan_sample's. */
banyan_status plan_imagine(const banyan_reshard_sample_world *world,
                           const banyan_reshard_options *options, plan_take_fn take, void *context);

#endif
