/* A plan's internals, as runs use them. */
#ifndef RESHARD_PLANNER_PLAN_H
#define RESHARD_PLANNER_PLAN_H

#include "reshard/planner/rank.h"
#include "world/control.h"

struct banyan_reshard_plan {
    int rank, world_size;
    control_timeout timeout;    /* of runs */
    uint64_t max_staging_bytes; /* 0: no bound */
    bool checksums;
    planner_result transfers;
    banyan_reshard_plan_bytes bytes;     /* that they move */
    banyan_layout *source, *destination; /* copies; the destination has the types of a run */
    struct execution *execution;         /* kept by the last run for the next; NULL: none */
};

/* The message and the log name at most this many tensors, and give the total count. */
#define PLAN_NAMES_LISTED 1000

/* Append to `failed`, the error that all ranks have, the names of all ranks' tensors of one side
 * that have nothing on the other, each with the nearest name there. Returns `failed`, or another
 * error when a rank fails meanwhile. Collective; costs a few small messages beyond the listed
 * names. */
banyan_status planner_report_unmatched(banyan_world *world, const planner *planning,
                                       banyan_side side, banyan_status failed);

#endif
