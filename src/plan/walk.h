/* A walk through a plan in an order in which its operations may run, to find the longest chain of
 * ranks that wait for each other. */
#ifndef PLAN_WALK_H
#define PLAN_WALK_H

#include "plan/geometry/geometry.h"

/* Hops from one rank to another on the longest way to the end of the plan. 0: there are none; or
 * the walk ends with someone waiting; or it is longer than can be walked. */
banyan_status plan_walk_hops(const banyan_plan *plan, const plan_geometry *geometry,
                             uint64_t *hops);

#endif
