/* A plan's internals, as runs use them. */
#ifndef RESHARD_PLANNER_PLAN_H
#define RESHARD_PLANNER_PLAN_H

#include "reshard/planner/rank.h"
#include "world/control.h"

typedef struct plan_padding {
    int tensor;
    banyan_box box;
    bool is_filled; /* by an element other than zero */
    unsigned char fill[BANYAN_MAX_FILL_BYTES];
} plan_padding;

/* One side of this rank's layouts, as far as runs need it. */
typedef struct plan_holding {
    banyan_local_tensor *tensors; /* with the types that a run requires */
    size_t tensor_count;
    banyan_piece *pieces;
    size_t piece_count;
    plan_padding *paddings;
    size_t padding_count;
    int *left_alone; /* for each box that runs leave alone, its tensor */
    size_t left_alone_count;
} plan_holding;

struct banyan_reshard_plan {
    int rank, world_size;
    control_timeout timeout;    /* of runs */
    uint64_t max_staging_bytes; /* 0: no bound */
    bool checksums;
    planner_result transfers;
    plan_holding source, destination;
    struct execution *execution; /* kept by the last run for the next; NULL: none */
};

/* Copy a layout (NULL: empty); `pool` keeps its strings. `dtypes` NULL: use the layout's own. */
banyan_status plan_holding_copy(const banyan_layout *layout, const DLDataType *dtypes, names *pool,
                                plan_holding *holding);
void plan_holding_free(plan_holding *holding);

/* Return the element that fills the i-th padding; NULL: zeros. */
static inline const void *plan_padding_fill(const plan_holding *holding, size_t i)
{
    return holding->paddings[i].is_filled ? holding->paddings[i].fill : NULL;
}

/* The message and the log name at most this many tensors, and give the total count. */
#define PLAN_NAMES_LISTED 1000

/* Append to `failed`, the error that all ranks have, the names of all ranks' tensors of one side
 * that have nothing on the other, each with the nearest name there. Returns `failed`, or another
 * error when a rank fails meanwhile. Collective; costs a few small messages beyond the listed
 * names. */
banyan_status plan_report_unmatched(banyan_world *world, const planner *planning, banyan_side side,
                                    banyan_status failed);

#endif
