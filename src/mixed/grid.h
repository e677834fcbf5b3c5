/* Positions of ranks in a tensor-parallel by data-parallel grid of nodes. */
#ifndef MIXED_GRID_H
#define MIXED_GRID_H

#include <banyan/mixed.h>

/* Derive the grid of a world of `ranks` ranks. `node_of(context, rank)` returns a rank's machine;
 * nodes set by the options override it. INVALID names the numbers that disagree. */
banyan_status grid_resolve(const banyan_mixed_options *options, int rank, int ranks,
                           int (*node_of)(void *context, int rank), void *context,
                           banyan_mixed_grid *grid);

/* Return the coordinates of any rank of a grid. */
banyan_mixed_grid grid_of_rank(const banyan_mixed_grid *grid, int rank);

/* Return the world rank with these indices in its groups. */
#define grid_rank_at banyan_mixed_rank_at

/* True if the grid allows the operation. */
bool grid_allows(const banyan_mixed_grid *grid, banyan_mixed_op op);

#endif
