/* Parts of plan_check_indices. */
#ifndef PLAN_CHECK_CHECK_H
#define PLAN_CHECK_CHECK_H

#include "core/text/json.h"
#include "plan/pairs.h"

/* The size of a switch channel's region: that of the member with the fewest chunks. */
typedef struct check_region {
    int rank;
    uint64_t chunks;
} check_region;

typedef struct plan_checker {
    const banyan_plan *plan;
    json_path path;
    plan_pairs pairs;
    check_region **regions; /* one per switch channel of each rank */
    arena memory;           /* of the lists */
    int rank;               /* the rank whose operations are checked */
    const plan_thread_block *block;
} plan_checker;

/* Check all channels, and prepare the data for the operations' checks. */
banyan_status check_channels(plan_checker *check);
void check_channels_free(plan_checker *check);

/* Check one operation of `check->block`; `path` leads to it. `loop` NULL: outside any loop. */
banyan_status check_op(plan_checker *check, const plan_op *op, const plan_op *loop);

/* Check the barriers of `check->rank`, after all its operations have passed. */
banyan_status check_barriers(plan_checker *check);

#endif
