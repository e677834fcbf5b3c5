/* The rule that chooses the sender of each part of a box. The receiver and every sender evaluate it
 * with identical results. */
#ifndef RESHARD_PLANNER_SHARE_H
#define RESHARD_PLANNER_SHARE_H

#include <banyan/reshard.h>

#include "reshard/planner/sources.h"

/* A box that one rank sends to another; `source` is an index into the tensor's sources. */
typedef struct planner_share {
    banyan_box box;
    int rank; /* the other end; the receiver itself where it holds the box */
    size_t source;
    uint32_t stage, turn; /* of the transfer */
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

/* Division of one box between the holders of a source, for receivers: ranks, or nodes with several
 * ranks each. Part p for the t-th receiver has number t · parts + p. The source's holder (base +
 * number) mod holders sends it. So each holder sends ⌊n ÷ holders⌋ or one more of n parts. */
typedef struct planner_division {
    banyan_box box;
    planner_grid grid;
    int64_t base;
    int64_t holders;
    int64_t first_rank; /* of a receiver's ranks: it gets part 0, the next one part 1, … */
} planner_division;

planner_division planner_divide(const planner_tensor *tensor, const planner_held *source,
                                const planner_held *destination, int64_t receivers,
                                int64_t ranks_each, const banyan_box *box);

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
