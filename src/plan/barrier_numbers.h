/* Numbers for the barriers of all ranks, as they are met. */
#ifndef PLAN_BARRIER_NUMBERS_H
#define PLAN_BARRIER_NUMBERS_H

#include "core/containers/arena.h"
#include "core/containers/map.h"
#include "plan/plan.h"

/* Zeroed is empty. */
typedef struct plan_barrier_numbers {
    map numbers;
    arena memory;
} plan_barrier_numbers;

/* The number of the barrier that the rank's operation is: from 0 on, the next one when it is met
 * for the first time. False when memory ran out. */
bool plan_barrier_numbers_find(plan_barrier_numbers *all, int rank, const plan_op *op,
                               size_t *number);
void plan_barrier_numbers_free(plan_barrier_numbers *old);

#endif
