/* Which rank is where in a tensor-parallel by data-parallel grid of nodes. */
#ifndef MIXED_GRID_H
#define MIXED_GRID_H

#include <banyan/mixed.h>

/* Of a world of `ranks` ranks, of which `node_of(context, rank)` says the machine (nodes that the
 * options set by hand hide it). INVALID says which numbers disagree. */
banyan_status grid_resolve(const banyan_mixed_options *options, int rank, int ranks,
                           int (*node_of)(void *context, int rank), void *context,
                           banyan_mixed_grid *grid);

/* The coordinates of any rank of the same grid. */
banyan_mixed_grid grid_of_rank(const banyan_mixed_grid *grid, int rank);

/* The world rank with these indices in its groups. */
#define grid_rank_at banyan_mixed_rank_at

/* Does the grid allow the operation? */
bool grid_allows(const banyan_mixed_grid *grid, banyan_mixed_op op);

#endif
