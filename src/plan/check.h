/* Parts of plan_check_indices. */
#ifndef PLAN_CHECK_H
#define PLAN_CHECK_H

#include "core/json.h"
#include "core/map.h"
#include "plan/plan.h"

/* The channels of a rank of one type. */
typedef struct check_ends {
    map towards;       /* peer's number, as in plan_rank.peers, to how many channels lead there */
    uint32_t *ordinal; /* of each channel among those to the same peer */
} check_ends;

/* How far a switch channel's region goes: in the member that has the fewest chunks. */
typedef struct check_region {
    int rank;
    uint64_t chunks;
} check_region;

typedef struct checker {
    const banyan_plan *plan;
    json_path path;
    check_ends (*ends)[PLAN_CHANNEL_TYPES]; /* of each rank; MEMORY and PORT */
    check_region **regions;                 /* of each rank's switch channels */
    arena memory;                           /* of the lists */
    int rank;                               /* whose operations are being looked at */
    const plan_thread_block *block;
} checker;

/* Look at all channels, and prepare what the operations' checks ask. */
banyan_status check_channels(checker *check);
/* Has the peer a channel that this one pairs with? */
bool check_is_paired(const checker *check, int rank, plan_channel_type type, uint32_t channel);
void check_channels_free(checker *check);

/* One operation of `check->block`; `path` leads to it. `loop` NULL: it is outside of any. */
banyan_status check_op(checker *check, const plan_op *op, const plan_op *loop);

/* Barriers of `check->rank`, whose operations are all in order. */
banyan_status check_barriers(checker *check);

#endif
