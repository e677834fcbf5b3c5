/* Numbers for the barriers of all ranks, as they are met. */
#ifndef PLAN_BARRIER_NUMBERS_H
#define PLAN_BARRIER_NUMBERS_H

#include "core/containers/arena.h"
#include "core/containers/map.h"
#include "plan/plan.h"

/* Zeroed is empty. */
typedef struct plan_meetings {
    map numbers;
    arena memory;
} plan_meetings;

/* The number of the barrier that the rank's operation is: from 0 on, the next one when it is met
 * for the first time. False when memory ran out. */
bool plan_meetings_find(plan_meetings *all, int rank, const plan_op *op, size_t *number);
void plan_meetings_free(plan_meetings *old);

#endif
