/* Who sends which part of a box: the planner's one rule, evaluated alike by the rank that receives
 * and by every rank that sends. */
#ifndef RESHARD_PLANNER_SHARE_H
#define RESHARD_PLANNER_SHARE_H

#include <banyan/layout.h>

#include "core/containers/array.h"

/* The ranks that hold a box, in an order that all see alike. */
typedef struct plan_holders {
    const banyan_rank_set *sets;
    size_t set_count;
    int64_t count; /* of ranks */
} plan_holders;

int plan_holders_at(const plan_holders *holders, int64_t index);
/* -1: not among them. */
int64_t plan_holders_find(const plan_holders *holders, int rank);

/* One box of a global tensor on one side. */
typedef struct plan_claim {
    banyan_box box;
    plan_holders holders;
    uint32_t ordinal;
} plan_claim;

/* A tensor as the rule sees it: different source boxes in ascending order of plan_box_compare. They
 * may overlap. A rank that is to know what one source sends need know only the sources that meet
 * it.
 */
typedef struct plan_tensor {
    const char *name;
    int ndim;
    const int64_t *shape;
    size_t elem_bytes; /* of the source's type */
    uint64_t min_split_bytes;
    const plan_claim *sources;
    const int64_t *reach; /* of the sources, from plan_reach_of */
    size_t source_count;
} plan_tensor;

/* By start, then by extent. */
int plan_box_compare(const banyan_box *a, const banyan_box *b);
/* How far sources 0 … i together reach along the slowest dimension. */
void plan_reach_of(const plan_claim *sources, size_t count, int64_t *reach);

/* A box that travels: `source` is an index into the tensor's sources. */
typedef struct plan_share {
    banyan_box box;
    int rank; /* the other end; the receiver itself where it holds the box */
    size_t source;
} plan_share;

typedef ARRAY(plan_share) plan_shares;

/* What `rank` (which holds `destination`, as its index-th holder) receives, appended to `shares`;
 * `covered_elems` is how much of the box the sources fill. NO_MEMORY is the only error. */
banyan_status plan_shares_received(const plan_tensor *tensor, const plan_claim *destination,
                                   int64_t index, int rank, plan_shares *shares,
                                   uint64_t *covered_elems);

/* What `rank`, the index-th holder of source `source`, sends to other holders of `destination`. */
banyan_status plan_shares_sent(const plan_tensor *tensor, size_t source, int64_t index, int rank,
                               const plan_claim *destination, plan_shares *shares);

/* A part of the box that no source holds; false when there is none or memory ran out. */
bool plan_hole_of(const plan_tensor *tensor, const banyan_box *box, banyan_box *hole);

/* A box cut evenly into at most `wanted` parts of `min_elems` elements or more: along its slowest
 * dimension that allows it, along several when no one does. */
typedef struct plan_grid {
    int64_t parts[BANYAN_MAX_DIMS];
    int64_t count;
} plan_grid;

plan_grid plan_grid_of(const banyan_box *box, int64_t wanted, uint64_t min_elems);
banyan_box plan_grid_part(const plan_grid *grid, const banyan_box *box, int64_t part);

#endif
