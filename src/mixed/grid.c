#include "mixed/grid.h"

#include "core/error.h"

static int grid_product(const banyan_mixed_grid *grid)
{
    return grid->local_tp * grid->local_dp * grid->inter_tp * grid->inter_dp;
}

static void grid_place(banyan_mixed_grid *grid, int rank)
{
    grid->local_rank = rank % grid->local_size;
    grid->node = rank / grid->local_size;
    grid->local_tp_rank = grid->local_rank % grid->local_tp;
    grid->local_dp_rank = grid->local_rank / grid->local_tp;
    grid->inter_tp_rank = grid->node % grid->inter_tp;
    grid->inter_dp_rank = grid->node / grid->inter_tp;
    grid->tp_index = grid->local_tp_rank + grid->inter_tp_rank * grid->local_tp;
    grid->dp_index = grid->local_dp_rank + grid->inter_dp_rank * grid->local_dp;
}

/* Count the machine's nodes, which must have equal numbers of consecutive ranks. */
static banyan_status count_nodes(int ranks, int (*node_of)(void *, int), void *context, int *nodes)
{
    int last = 0;
    for (int r = 0; r < ranks; r++)
        last = node_of(context, r) > last ? node_of(context, r) : last;
    *nodes = last + 1;
    for (int r = 0; r < ranks; r++) {
        if (ranks % *nodes != 0 || node_of(context, r) != r / (ranks / *nodes))
            return error_set(BANYAN_ERR_INVALID,
                             "a mixed grid needs equally many consecutive ranks a node: %d ranks "
                             "are on %d nodes, and rank %d is on node %d",
                             ranks, *nodes, r, node_of(context, r));
    }
    return BANYAN_OK;
}

/* Dimensions that are not set fill the size; the tensor-parallel one is filled first. */
static banyan_status grid_fill(const char *where, int size, int *tp, int *dp)
{
    int asked_tp = *tp, asked_dp = *dp;
    if (*tp == 0 && *dp == 0)
        *dp = 1;
    if (*tp == 0)
        *tp = size / *dp;
    if (*dp == 0)
        *dp = size / *tp;
    if (*tp * (int64_t)*dp == size)
        return BANYAN_OK;
    return error_set(BANYAN_ERR_INVALID,
                     "a mixed grid of %s_tp %d × %s_dp %d (0: what is left) does not make the %d "
                     "%s",
                     where, asked_tp, where, asked_dp, size,
                     where[0] == 'l' ? "ranks of a node" : "nodes of the world");
}

banyan_status grid_resolve(const banyan_mixed_options *options, int rank, int ranks,
                           int (*node_of)(void *context, int rank), void *context,
                           banyan_mixed_grid *grid)
{
    if (options->local_tp < 0 || options->local_dp < 0 || options->inter_tp < 0 ||
        options->inter_dp < 0 || options->nodes < 0)
        return error_set(BANYAN_ERR_INVALID,
                         "a mixed grid has sizes below 0: local_tp %d, local_dp %d, inter_tp %d, "
                         "inter_dp %d, nodes %d",
                         options->local_tp, options->local_dp, options->inter_tp, options->inter_dp,
                         options->nodes);
    banyan_mixed_grid made = {.local_tp = options->local_tp,
                              .local_dp = options->local_dp,
                              .inter_tp = options->inter_tp,
                              .inter_dp = options->inter_dp,
                              .nodes = options->nodes};
    if (made.nodes == 0)
        RETURN_IF_FAILED(count_nodes(ranks, node_of, context, &made.nodes));
    if (ranks % made.nodes != 0)
        return error_set(BANYAN_ERR_INVALID,
                         "a mixed grid cannot split %d ranks into %d nodes of one size", ranks,
                         made.nodes);
    made.local_size = ranks / made.nodes;
    RETURN_IF_FAILED(grid_fill("local", made.local_size, &made.local_tp, &made.local_dp));
    RETURN_IF_FAILED(grid_fill("inter", made.nodes, &made.inter_tp, &made.inter_dp));
    made.tp = made.local_tp * made.inter_tp;
    made.dp = made.local_dp * made.inter_dp;
    grid_place(&made, rank);
    *grid = made;
    return BANYAN_OK;
}

banyan_mixed_grid grid_of_rank(const banyan_mixed_grid *grid, int rank)
{
    banyan_mixed_grid other = *grid;
    grid_place(&other, rank);
    return other;
}

int banyan_mixed_rank_at(const banyan_mixed_grid *grid, int tp_index, int dp_index)
{
    if (!grid || tp_index < 0 || tp_index >= grid->tp || dp_index < 0 || dp_index >= grid->dp)
        return -1;
    int local = tp_index % grid->local_tp + dp_index % grid->local_dp * grid->local_tp;
    int node = tp_index / grid->local_tp + dp_index / grid->local_dp * grid->inter_tp;
    return local + node * grid->local_size;
}

bool grid_allows(const banyan_mixed_grid *grid, banyan_mixed_op op)
{
    bool tensor = grid->tp > 1 || grid_product(grid) == 1, data = grid->dp > 1;
    switch (op) {
    case BANYAN_MIXED_ALLREDUCE:
        return tensor && !data;
    case BANYAN_MIXED_ALLGATHER:
    case BANYAN_MIXED_REDUCESCATTER:
        return data && !tensor;
    case BANYAN_MIXED_ALLREDUCE_ALLGATHER:
    case BANYAN_MIXED_REDUCESCATTER_ALLREDUCE:
        return tensor && data;
    default:
        return false;
    }
}
