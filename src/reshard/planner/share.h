/* The rule that chooses the sender of each part of a box. The receiver and every sender evaluate it
 * with identical results. */
#ifndef RESHARD_PLANNER_SHARE_H
#define RESHARD_PLANNER_SHARE_H

#include <banyan/layout.h>
#include <banyan/reshard.h>

#include "core/containers.h"

/* The ranks that hold a box, in an order that is identical at every rank. */
typedef struct planner_holders {
    const banyan_rank_set *sets;
    size_t set_count;
    int64_t count; /* of ranks */
} planner_holders;

int planner_holders_at(const planner_holders *holders, int64_t index);
/* Return the rank's index, or -1 if it is not a holder. */
int64_t planner_holders_find(const planner_holders *holders, int rank);

/* One box of a global tensor on one side. */
typedef struct planner_held {
    banyan_box box;
    planner_holders holders;
    uint32_t ordinal;
} planner_held;

/* A tensor as input of the rule: distinct source boxes in ascending order of planner_box_compare.
 * They may overlap. To find what one source sends, a rank needs only the sources that intersect it.
 */
typedef struct planner_tensor {
    const char *name;
    int ndim;
    const int64_t *shape;
    size_t elem_bytes; /* of the source's type */
    uint64_t min_split_bytes;
    const planner_held *sources;
    const banyan_box *bounds; /* of the sources, from planner_bounds_of */
    size_t source_count;
} planner_tensor;

/* By start, then by extent. */
int planner_box_compare(const banyan_box *a, const banyan_box *b);
/* A tree of bounding boxes of neighbours among the sources, by which those that intersect a box are
 * found in logarithmic time: neighbours in the order of planner_box_compare lie close together. */
size_t planner_bounds_count(size_t source_count);
void planner_bounds_of(const planner_held *sources, size_t source_count, banyan_box *bounds);

/* A box that one rank sends to another; `source` is an index into the tensor's sources. */
typedef struct planner_share {
    banyan_box box;
    int rank; /* the other end; the receiver itself where it holds the box */
    size_t source;
} planner_share;

typedef ARRAY(planner_share) planner_shares;

/* Append to `shares` everything that `rank` receives; it holds `destination`, as its index-th
 * holder. `covered_elems` is the number of the box's elements that the sources fill. NO_MEMORY is
 * the only error. */
banyan_status planner_shares_received(const planner_tensor *tensor, const planner_held *destination,
                                      int64_t index, int rank, planner_shares *shares,
                                      uint64_t *covered_elems);

/* Append everything that `rank`, the index-th holder of source `source`, sends to other holders of
 * `destination`. */
banyan_status planner_shares_sent(const planner_tensor *tensor, size_t source, int64_t index,
                                  int rank, const planner_held *destination,
                                  planner_shares *shares);

/* Find a part of the box that no source holds; false when there is none or memory ran out. */
bool planner_hole_of(const planner_tensor *tensor, const banyan_box *box, banyan_box *hole);

/* A box cut evenly into at most `wanted` parts of `min_elems` elements or more: along its slowest
 * dimension that allows it, or along several when no single one does. */
typedef struct planner_grid {
    int64_t parts[BANYAN_MAX_DIMS];
    int64_t count;
} planner_grid;

planner_grid planner_grid_of(const banyan_box *box, int64_t wanted, uint64_t min_elems);
banyan_box planner_grid_part(const planner_grid *grid, const banyan_box *box, int64_t part);

/* Task ids, which both ends of a transfer derive independently. */

/* A transfer with everything that distinguishes it from others between the same two ranks. */
typedef struct planner_move {
    banyan_transfer transfer;
    banyan_box destination; /* part of this destination piece */
    uint32_t ordinal;
} planner_move;

/* Derive the id from names, boxes and ranks alone: adding ranks at the end changes no id. */
uint64_t planner_id_of(const planner_move *move);

/* Sort moves by the two ranks and the id, and make colliding ids between two ranks distinct. Both
 * ends resolve a collision identically. No id becomes BANYAN_TASK_ID_NONE. */
void planner_ids_settle(planner_move *moves, size_t count);

#endif
