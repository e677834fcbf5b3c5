/* Which source sends which part of a box: one rule, which the receiver and every sender evaluate
 * with identical results. */
#ifndef RESHARD_PLANNER_SHARE_H
#define RESHARD_PLANNER_SHARE_H

#include <banyan/layout.h>
#include <banyan/reshard.h>

#include "core/containers.h"

/* The ranks that hold a box, in an order that is identical at every rank. */
typedef struct plan_holders {
    const banyan_rank_set *sets;
    size_t set_count;
    int64_t count; /* of ranks */
} plan_holders;

int plan_holders_at(const plan_holders *holders, int64_t index);
/* Return the rank's index, or -1 if it is not a holder. */
int64_t plan_holders_find(const plan_holders *holders, int rank);

/* One box of a global tensor on one side. */
typedef struct plan_claim {
    banyan_box box;
    plan_holders holders;
    uint32_t ordinal;
} plan_claim;

/* A tensor as input of the rule: distinct source boxes in ascending order of plan_box_compare. They
 * may overlap. To find what one source sends, a rank needs only the sources that intersect it. */
typedef struct plan_tensor {
    const char *name;
    int ndim;
    const int64_t *shape;
    size_t elem_bytes; /* of the source's type */
    uint64_t min_split_bytes;
    const plan_claim *sources;
    const banyan_box *bounds; /* of the sources, from plan_bounds_of */
    size_t source_count;
} plan_tensor;

/* By start, then by extent. */
int plan_box_compare(const banyan_box *a, const banyan_box *b);
/* A tree of bounding boxes of neighbours among the sources, by which those that intersect a box are
 * found in logarithmic time: neighbours in the order of plan_box_compare lie close together. */
size_t plan_bounds_count(size_t source_count);
void plan_bounds_of(const plan_claim *sources, size_t source_count, banyan_box *bounds);

/* A box that one rank sends to another; `source` is an index into the tensor's sources. */
typedef struct plan_share {
    banyan_box box;
    int rank; /* the other end; the receiver itself where it holds the box */
    size_t source;
} plan_share;

typedef ARRAY(plan_share) plan_shares;

/* Append to `shares` everything that `rank` receives; it holds `destination`, as its index-th
 * holder. `covered_elems` is the number of the box's elements that the sources fill. NO_MEMORY is
 * the only error. */
banyan_status plan_shares_received(const plan_tensor *tensor, const plan_claim *destination,
                                   int64_t index, int rank, plan_shares *shares,
                                   uint64_t *covered_elems);

/* Append everything that `rank`, the index-th holder of source `source`, sends to other holders of
 * `destination`. */
banyan_status plan_shares_sent(const plan_tensor *tensor, size_t source, int64_t index, int rank,
                               const plan_claim *destination, plan_shares *shares);

/* Find a part of the box that no source holds; false when there is none or memory ran out. */
bool plan_hole_of(const plan_tensor *tensor, const banyan_box *box, banyan_box *hole);

/* A box cut evenly into at most `wanted` parts of `min_elems` elements or more: along its slowest
 * dimension that allows it, or along several when no single one does. */
typedef struct plan_grid {
    int64_t parts[BANYAN_MAX_DIMS];
    int64_t count;
} plan_grid;

plan_grid plan_grid_of(const banyan_box *box, int64_t wanted, uint64_t min_elems);
banyan_box plan_grid_part(const plan_grid *grid, const banyan_box *box, int64_t part);

/* Task ids, which both ends of a transfer derive independently. */

/* A transfer with everything that distinguishes it from others between the same two ranks. */
typedef struct plan_move {
    banyan_transfer transfer;
    banyan_box destination; /* part of this destination piece */
    uint32_t ordinal;
} plan_move;

/* Derive the id from names, boxes and ranks alone: adding ranks at the end changes no id. */
uint64_t plan_id_of(const plan_move *move);

/* Sort moves by the two ranks and the id, and make colliding ids between two ranks distinct. Both
 * ends resolve a collision identically. No id becomes BANYAN_TASK_ID_NONE. */
void plan_ids_settle(plan_move *moves, size_t count);

#endif
