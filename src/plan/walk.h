/* Walk through a plan in an executable order, to find the longest chain of dependent ranks. */
#ifndef PLAN_WALK_H
#define PLAN_WALK_H

#include "plan/geometry/geometry.h"

/* Get the hops between ranks on the longest path to the end of the plan. 0: there are none, the
 * walk ends in a deadlock, or it takes too many steps. */
banyan_status plan_walk_hops(const banyan_plan *plan, const plan_geometry *geometry,
                             uint64_t *hops);

#endif
