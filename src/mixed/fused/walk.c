/* The transfers and sums of every mode, in either form. */
#include "mixed/fused/program.h"
#include "mixed/grid.h"

static void fused_walk_put(fused *f, int peer, uint64_t region, int index, banyan_chunk data)
{
    f->form->put(f, fused_slot(f, peer, region, index), data);
}

static void fused_walk_barrier(fused *f, int mesh, fused_circle who)
{
    if (f->form->barrier)
        f->form->barrier(f, mesh, who);
}

static banyan_chunk fused_walk_mine(const fused *f, uint64_t region, int index)
{
    return fused_slot(f, f->rank, region, index);
}

/* Add a summand. All ranks that compute one sum use one order. */
static void fused_walk_add(fused *f, fused_sum *sum, uint64_t region, int index)
{
    f->a.parts[sum->count++] = fused_walk_mine(f, region, index);
}

static void add_own(fused *f, fused_sum *sum, banyan_chunk own, uint64_t region, int index)
{
    sum->own = own;
    sum->own_at = sum->count;
    fused_walk_add(f, sum, region, index);
}

/* `count` places of a region, at a distance of `step`. */
typedef struct slot_places {
    uint64_t region;
    int first, step, count;
} slot_places;

/* Sum the places. The own_at-th is the rank's own; -1: none is. */
static void fused_walk_add_up(fused *f, slot_places of, int own_at, banyan_chunk own,
                              banyan_chunk destination)
{
    fused_sum sum = FUSED_SUM_INIT;
    for (int i = 0; i < of.count; i++) {
        if (i == own_at)
            add_own(f, &sum, own, of.region, of.first + i * of.step);
        else
            fused_walk_add(f, &sum, of.region, of.first + i * of.step);
    }
    f->form->sum(f, &sum, destination);
}

static void gather_at_once(fused *f)
{
    const banyan_mixed_grid *grid = &f->grid;
    EACH_OTHER(fused_ranks(f), f->rank, peer)
    fused_walk_put(f, peer, f->at.first, f->rank, fused_input(f, 0, 0, 0));
    fused_walk_barrier(f, MESH_LOCAL_FIRST, IN_ALL);
    for (int dp = 0; dp < grid->dp; dp++) {
        fused_sum sum = FUSED_SUM_INIT;
        for (int tp = 0; tp < grid->tp; tp++) {
            int source = grid_rank_at(grid, tp, dp);
            if (source == f->rank)
                add_own(f, &sum, fused_input(f, 0, 0, 0), f->at.first, source);
            else
                fused_walk_add(f, &sum, f->at.first, source);
        }
        f->form->sum(f, &sum, fused_output(f, dp, 0, 0));
    }
}

static void scatter_at_once(fused *f)
{
    EACH_OTHER(fused_ranks(f), f->rank, peer)
    fused_walk_put(f, peer, f->at.first, f->rank,
                   fused_input(f, grid_of_rank(&f->grid, peer).dp_index, 0, 0));
    fused_walk_barrier(f, MESH_LOCAL_FIRST, IN_ALL);
    fused_walk_add_up(f, (slot_places){f->at.first, 0, 1, fused_ranks(f)}, f->rank,
                      fused_input(f, f->grid.dp_index, 0, 0), fused_output(f, 0, 0, 0));
}

static void put_parts(fused *f)
{
    const banyan_mixed_grid *grid = &f->grid;
    EACH_OTHER(grid->local_tp, grid->local_tp_rank, tp)
    for (int share = 0; share < f->shares; share++)
        fused_walk_put(f, fused_local(f, tp, grid->local_dp_rank), f->at.first,
                       grid->local_tp_rank * f->shares + share, fused_input(f, 0, tp, share));
    fused_walk_barrier(f, MESH_LOCAL_FIRST, IN_TP);
}

/* Sum one share of the rank's part over the node's tensor-parallel ranks. Returns its place, which
 * is `destination` if there is anything to add. */
static banyan_chunk fused_walk_sum_part(fused *f, int share, banyan_chunk destination)
{
    const banyan_mixed_grid *grid = &f->grid;
    banyan_chunk own = fused_input(f, 0, grid->local_tp_rank, share);
    if (grid->local_tp == 1)
        return own;
    slot_places parts = {f->at.first, share, f->shares, grid->local_tp};
    fused_walk_add_up(f, parts, grid->local_tp_rank, own, destination);
    return destination;
}

static void put_rows(fused *f)
{
    const banyan_mixed_grid *grid = &f->grid;
    int rows = fused_rows(f);
    EACH_OTHER(grid->local_size, grid->local_rank, local)
    {
        int tp = local % grid->local_tp, dp = local / grid->local_tp;
        for (int row = 0; row < rows; row++)
            fused_walk_put(
                f, fused_local(f, tp, dp), f->at.first, grid->local_rank * rows + row,
                fused_input(f, fused_block(f, dp, row / f->shares), tp, row % f->shares));
    }
    fused_walk_barrier(f, MESH_LOCAL_FIRST, IN_NODE);
}

/* Sum a row over all ranks of the node. */
static banyan_chunk sum_row(fused *f, int row, banyan_chunk destination)
{
    const banyan_mixed_grid *grid = &f->grid;
    banyan_chunk own = fused_input(f, fused_block(f, grid->local_dp_rank, row / f->shares),
                                   grid->local_tp_rank, row % f->shares);
    if (grid->local_size == 1)
        return own;
    slot_places rows = {f->at.first, row, fused_rows(f), grid->local_size};
    fused_walk_add_up(f, rows, grid->local_rank, own, destination);
    return destination;
}

/* Sum over a tensor-parallel group of nodes; `own` is this node's sum. */
static void sum_group(fused *f, int inter_dp, banyan_chunk own, banyan_chunk destination)
{
    const banyan_mixed_grid *grid = &f->grid;
    int own_at = inter_dp == grid->inter_dp_rank ? grid->inter_tp_rank : -1;
    slot_places sums = {f->at.inter, fused_node_number(f, 0, inter_dp), 1, grid->inter_tp};
    fused_walk_add_up(f, sums, own_at, own, destination);
}

static void fused_walk_show(fused *f, int row)
{
    if (f->form->show)
        f->form->show(f, row);
}

/* Send every node's sums to all nodes, which add them in one order. */
static void gather_between_nodes(fused *f)
{
    const banyan_mixed_grid *grid = &f->grid;
    banyan_chunk own = fused_walk_sum_part(f, 0, fused_walk_mine(f, f->at.partial, 0));
    EACH_OTHER(grid->nodes, grid->node, node)
    fused_walk_put(f, fused_rank_on(f, node), f->at.inter, grid->node, own);
    fused_walk_barrier(f, MESH_NODES_FIRST, AMONG_NODES);
    for (int dp = 0; dp < grid->inter_dp; dp++) {
        sum_group(f, dp, own, f->form->result(f, dp));
        fused_walk_show(f, dp);
    }
}

/* Node `inter_tp` of a tensor-parallel group of nodes adds its share of the group's sums and sends
 * it to all nodes. */
static void gather_in_shares(fused *f)
{
    const banyan_mixed_grid *grid = &f->grid;
    int own_dp = grid->inter_dp_rank, own_tp = grid->inter_tp_rank;
    EACH_OTHER(grid->inter_tp, own_tp, tp)
    fused_walk_put(f, fused_node(f, tp, own_dp), f->at.inter, grid->node,
                   fused_walk_sum_part(f, tp, fused_walk_mine(f, f->at.partial, tp)));
    banyan_chunk own = fused_walk_sum_part(f, own_tp, fused_walk_mine(f, f->at.partial, own_tp));
    fused_walk_barrier(f, MESH_NODES_FIRST, AMONG_TP_NODES);
    sum_group(f, own_dp, own, f->form->result(f, own_dp * f->shares + own_tp));
    f->form->gather_shares(f);
}

static void gather_by_parts(fused *f)
{
    put_parts(f);
    if (f->two_shots) {
        gather_in_shares(f);
    } else if (f->grid.nodes > 1) {
        gather_between_nodes(f);
    } else {
        (void)fused_walk_sum_part(f, 0, f->form->result(f, 0));
        fused_walk_show(f, 0);
    }
    f->form->gather_in_node(f);
}

/* Send the node's sum of a row to its nodes: all of them, or the one that owns the share. */
static banyan_chunk send_row(fused *f, int row)
{
    const banyan_mixed_grid *grid = &f->grid;
    int dp = row / f->shares, share = row % f->shares;
    banyan_chunk sum = sum_row(f, row, fused_walk_mine(f, f->at.partial, row));
    for (int tp = 0; tp < grid->inter_tp; tp++) {
        int node = fused_node_number(f, tp, dp);
        if (node != grid->node && (tp == share || !f->two_shots))
            fused_walk_put(f, fused_rank_on(f, node), f->at.inter, grid->node, sum);
    }
    return sum;
}

/* The rank that receives a row from all nodes adds it. */
static void scatter_between_nodes(fused *f)
{
    const banyan_mixed_grid *grid = &f->grid;
    int own_share = f->two_shots ? grid->inter_tp_rank : 0;
    int own_row = grid->inter_dp_rank * f->shares + own_share;
    EACH_OTHER(fused_rows(f), own_row, row)
    (void)send_row(f, row);
    banyan_chunk own = send_row(f, own_row);
    fused_walk_barrier(f, MESH_NODES_FIRST, AMONG_NODES);
    fused_walk_add_up(f, (slot_places){f->at.inter, 0, 1, grid->nodes}, grid->node, own,
                      f->form->result(f, own_share));
}

static void scatter_by_parts(fused *f)
{
    put_rows(f);
    if (f->grid.nodes > 1)
        scatter_between_nodes(f);
    else
        (void)sum_row(f, 0, f->form->result(f, 0));
    if (f->two_shots)
        f->form->share_between_nodes(f);
    f->form->share_in_node(f);
}

void fused_walk(fused *f)
{
    bool at_once = f->kind.mode == BANYAN_MIXED_ONE_SHOT;
    if (at_once && f->gathers)
        gather_at_once(f);
    else if (at_once)
        scatter_at_once(f);
    else if (f->gathers)
        gather_by_parts(f);
    else
        scatter_by_parts(f);
}
