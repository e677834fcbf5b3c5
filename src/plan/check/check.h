/* Parts of plan_check_indices. */
#ifndef PLAN_CHECK_CHECK_H
#define PLAN_CHECK_CHECK_H

#include "core/text/json.h"
#include "plan/pairs.h"

/* How far a switch channel's region goes: in the member that has the fewest chunks. */
typedef struct check_region {
    int rank;
    uint64_t chunks;
} check_region;

typedef struct checker {
    const banyan_plan *plan;
    json_path path;
    plan_pairs pairs;
    check_region **regions; /* of each rank's switch channels */
    arena memory;           /* of the lists */
    int rank;               /* whose operations are being looked at */
    const plan_thread_block *block;
} checker;

/* Look at all channels, and prepare what the operations' checks ask. */
banyan_status check_channels(checker *check);
void check_channels_free(checker *check);

/* One operation of `check->block`; `path` leads to it. `loop` NULL: it is outside of any. */
banyan_status check_op(checker *check, const plan_op *op, const plan_op *loop);

/* Barriers of `check->rank`, whose operations are all in order. */
banyan_status check_barriers(checker *check);

#endif
