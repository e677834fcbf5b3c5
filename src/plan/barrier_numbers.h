/* Number the barriers of all ranks, in the order in which they are first seen. */
#ifndef PLAN_BARRIER_NUMBERS_H
#define PLAN_BARRIER_NUMBERS_H

#include "core/containers/arena.h"
#include "core/containers/map.h"
#include "plan/plan.h"

/* A zeroed set is empty. */
typedef struct plan_barrier_numbers {
    map numbers;
    arena memory;
} plan_barrier_numbers;

/* Get the number of the rank's barrier operation. A barrier that was not seen before gets the next
 * number, from 0 on. False when out of memory. */
bool plan_barrier_numbers_find(plan_barrier_numbers *all, int rank, const plan_op *op,
                               size_t *number);
void plan_barrier_numbers_free(plan_barrier_numbers *old);

#endif
