/* Packets: data that carries its own flag, so that nobody signals. One thread block a rank. */
#include "mixed/fused_program.h"
#include "mixed/grid.h"

/* What a sum is made of, in its order: packets in scratch, and at place `own_at`, if it is not -1,
 * data of the rank's own, which has a slot for packets of it as well. */
typedef struct addends {
    banyan_chunk *slots; /* of the algorithm's parts */
    int count, own_at;
    banyan_chunk own;
} addends;

static addends addends_of(fused *f)
{
    return (addends){.slots = f->a.parts, .own_at = -1};
}

static void add_slot(addends *of, banyan_chunk slot)
{
    of->slots[of->count++] = slot;
}

static void add_own(addends *of, banyan_chunk own, banyan_chunk slot)
{
    of->own = own;
    of->own_at = of->count;
    add_slot(of, slot);
}

static void reduce(fused *f, banyan_chunk first, const banyan_chunk *others, int count,
                   banyan_chunk destination)
{
    banyan_reduce_packets(f->a.program, f->rank, first, others, count, destination, f->a.op,
                          BANYAN_TB(0));
}

/* Everybody who adds the same adds in the same order. The operation begins with data: with the
 * rank's own where it is first, or second, since two may be exchanged. */
static void sum(fused *f, addends *of, banyan_chunk destination)
{
    bool begins = of->own_at == 0 || of->own_at == 1;
    if (of->count == 1 && begins) {
        local_copy(&f->a, destination, of->own, 0);
    } else if (begins) {
        if (of->own_at == 1)
            of->slots[1] = of->slots[0];
        reduce(f, of->own, of->slots + 1, of->count - 1, destination);
    } else {
        if (of->own_at > 1)
            banyan_copy_packets(f->a.program, f->rank, of->slots[of->own_at], of->own,
                                BANYAN_TB(0));
        banyan_unpack_packets(f->a.program, f->rank, destination, of->slots[0], BANYAN_TB(0));
        if (of->count > 1)
            reduce(f, destination, of->slots + 1, of->count - 1, destination);
    }
}

static void put(fused *f, int peer, uint64_t region, int index, banyan_chunk data)
{
    remote_put_packets(&f->a, fused_slot(f, peer, region, index), data, 0);
}

static void unpack(fused *f, banyan_chunk destination, uint64_t region, int index)
{
    banyan_unpack_packets(f->a.program, f->rank, destination, fused_slot(f, f->rank, region, index),
                          BANYAN_TB(0));
}

/* ---- fewest waits ---- */

static void gather_at_once(fused *f)
{
    const banyan_mixed_grid *grid = &f->grid;
    EACH_OTHER(fused_ranks(f), f->rank, peer)
    put(f, peer, f->at.first, f->rank, fused_input(f, 0, 0, 0));
    for (int dp = 0; dp < grid->dp; dp++) {
        addends of = addends_of(f);
        for (int tp = 0; tp < grid->tp; tp++) {
            int source = grid_rank_at(grid, tp, dp);
            banyan_chunk slot = fused_slot(f, f->rank, f->at.first, source);
            if (source == f->rank)
                add_own(&of, fused_input(f, 0, 0, 0), slot);
            else
                add_slot(&of, slot);
        }
        sum(f, &of, fused_output(f, dp, 0, 0));
    }
}

static void scatter_at_once(fused *f)
{
    const banyan_mixed_grid *grid = &f->grid;
    EACH_OTHER(fused_ranks(f), f->rank, peer)
    {
        int local = peer % grid->local_size, node = peer / grid->local_size;
        int block = fused_block(f, local / grid->local_tp, node / grid->inter_tp);
        put(f, peer, f->at.first, f->rank, fused_input(f, block, 0, 0));
    }
    addends of = addends_of(f);
    for (int source = 0; source < fused_ranks(f); source++) {
        banyan_chunk slot = fused_slot(f, f->rank, f->at.first, source);
        if (source == f->rank)
            add_own(&of, fused_input(f, grid->dp_index, 0, 0), slot);
        else
            add_slot(&of, slot);
    }
    sum(f, &of, fused_output(f, 0, 0, 0));
}

/* ---- inside the node ---- */

/* The sum over the node's tensor-parallel ranks of one share of the rank's part: where it is, which
 * is `destination` if there is anything to add. */
static banyan_chunk sum_part(fused *f, int share, banyan_chunk destination)
{
    const banyan_mixed_grid *grid = &f->grid;
    banyan_chunk own = fused_input(f, 0, grid->local_tp_rank, share);
    if (grid->local_tp == 1)
        return own;
    addends of = addends_of(f);
    for (int tp = 0; tp < grid->local_tp; tp++) {
        banyan_chunk slot = fused_slot(f, f->rank, f->at.first, tp * f->shares + share);
        if (tp == grid->local_tp_rank)
            add_own(&of, own, slot);
        else
            add_slot(&of, slot);
    }
    sum(f, &of, destination);
    return destination;
}

static void put_parts(fused *f)
{
    const banyan_mixed_grid *grid = &f->grid;
    EACH_OTHER(grid->local_tp, grid->local_tp_rank, tp)
    for (int share = 0; share < f->shares; share++)
        put(f, fused_local(f, tp, grid->local_dp_rank), f->at.first,
            grid->local_tp_rank * f->shares + share, fused_input(f, 0, tp, share));
}

/* Scattering: the sum over all ranks of the node, of a block for nodes of `inter_dp`. */
static int row_of(const fused *f, int inter_dp, int share)
{
    return inter_dp * f->shares + share;
}

static banyan_chunk sum_rows(fused *f, int inter_dp, int share, banyan_chunk destination)
{
    const banyan_mixed_grid *grid = &f->grid;
    int rows = grid->inter_dp * f->shares, row = row_of(f, inter_dp, share);
    int block = fused_block(f, grid->local_dp_rank, inter_dp);
    banyan_chunk own = fused_input(f, block, grid->local_tp_rank, share);
    if (grid->local_size == 1)
        return own;
    addends of = addends_of(f);
    for (int local = 0; local < grid->local_size; local++) {
        banyan_chunk slot = fused_slot(f, f->rank, f->at.first, local * rows + row);
        if (local == grid->local_rank)
            add_own(&of, own, slot);
        else
            add_slot(&of, slot);
    }
    sum(f, &of, destination);
    return destination;
}

static void put_rows(fused *f)
{
    const banyan_mixed_grid *grid = &f->grid;
    int rows = grid->inter_dp * f->shares;
    EACH_OTHER(grid->local_size, grid->local_rank, local)
    {
        int tp = local % grid->local_tp, dp = local / grid->local_tp;
        for (int row = 0; row < rows; row++)
            put(f, fused_local(f, tp, dp), f->at.first, grid->local_rank * rows + row,
                fused_input(f, fused_block(f, dp, row / f->shares), tp, row % f->shares));
    }
}

/* ---- gathering ---- */

/* A sum that is in the output goes to all ranks of the node. */
static void hand_out(fused *f, int inter_dp, int share)
{
    const banyan_mixed_grid *grid = &f->grid;
    int rows = grid->inter_dp * f->shares;
    banyan_chunk data =
        fused_output(f, fused_block(f, grid->local_dp_rank, inter_dp), grid->local_tp_rank, share);
    EACH_OTHER(grid->local_size, grid->local_rank, local)
    put(f, fused_local(f, local % grid->local_tp, local / grid->local_tp), f->at.gathered,
        grid->local_rank * rows + row_of(f, inter_dp, share), data);
}

static void take_in(fused *f)
{
    const banyan_mixed_grid *grid = &f->grid;
    int rows = grid->inter_dp * f->shares;
    EACH_OTHER(grid->local_size, grid->local_rank, local)
    {
        for (int row = 0; row < rows; row++) {
            int block = fused_block(f, local / grid->local_tp, row / f->shares);
            unpack(f, fused_output(f, block, local % grid->local_tp, row % f->shares),
                   f->at.gathered, local * rows + row);
        }
    }
}

static banyan_chunk own_output(const fused *f, int inter_dp, int share)
{
    return fused_output(f, fused_block(f, f->grid.local_dp_rank, inter_dp), f->grid.local_tp_rank,
                        share);
}

/* Every node's sums to all nodes, which add them up alike. */
static void gather_between_nodes(fused *f)
{
    const banyan_mixed_grid *grid = &f->grid;
    banyan_chunk own = sum_part(f, 0, fused_slot(f, f->rank, f->at.partial, 0));
    EACH_OTHER(grid->nodes, grid->node, node)
    put(f, node * grid->local_size + grid->local_rank, f->at.inter, grid->node, own);
    for (int dp = 0; dp < grid->inter_dp; dp++) {
        addends of = addends_of(f);
        for (int tp = 0; tp < grid->inter_tp; tp++) {
            int node = fused_node_number(f, tp, dp);
            banyan_chunk slot = fused_slot(f, f->rank, f->at.inter, node);
            if (node == grid->node)
                add_own(&of, own, slot);
            else
                add_slot(&of, slot);
        }
        sum(f, &of, own_output(f, dp, 0));
        hand_out(f, dp, 0);
    }
}

/* Node `inter_tp` of a tensor-parallel group of nodes adds up its share of the group's sums. */
static void sum_share(fused *f, banyan_chunk own, banyan_chunk destination)
{
    const banyan_mixed_grid *grid = &f->grid;
    addends of = addends_of(f);
    for (int tp = 0; tp < grid->inter_tp; tp++) {
        banyan_chunk slot =
            fused_slot(f, f->rank, f->at.inter, fused_node_number(f, tp, grid->inter_dp_rank));
        if (tp == grid->inter_tp_rank)
            add_own(&of, own, slot);
        else
            add_slot(&of, slot);
    }
    sum(f, &of, destination);
}

static void gather_in_shares(fused *f)
{
    const banyan_mixed_grid *grid = &f->grid;
    int own_dp = grid->inter_dp_rank, own_tp = grid->inter_tp_rank;
    EACH_OTHER(grid->inter_tp, own_tp, tp)
    put(f, fused_node(f, tp, own_dp), f->at.inter, grid->node,
        sum_part(f, tp, fused_slot(f, f->rank, f->at.partial, tp)));
    banyan_chunk own = sum_part(f, own_tp, fused_slot(f, f->rank, f->at.partial, own_tp));
    sum_share(f, own, own_output(f, own_dp, own_tp));
    EACH_OTHER(grid->nodes, grid->node, node)
    put(f, node * grid->local_size + grid->local_rank, f->at.across, grid->node,
        own_output(f, own_dp, own_tp));
    hand_out(f, own_dp, own_tp);
    EACH_OTHER(grid->nodes, grid->node, node)
    {
        int dp = node / grid->inter_tp, tp = node % grid->inter_tp;
        unpack(f, own_output(f, dp, tp), f->at.across, node);
        hand_out(f, dp, tp);
    }
}

static void gather_by_parts(fused *f)
{
    put_parts(f);
    if (f->two_shots) {
        gather_in_shares(f);
    } else if (f->grid.nodes > 1) {
        gather_between_nodes(f);
    } else {
        (void)sum_part(f, 0, own_output(f, 0, 0));
        hand_out(f, 0, 0);
    }
    take_in(f);
}

/* ---- scattering ---- */

/* The sum over all nodes, of which `own` is this one's. */
static void sum_nodes(fused *f, banyan_chunk own, banyan_chunk destination)
{
    const banyan_mixed_grid *grid = &f->grid;
    addends of = addends_of(f);
    for (int node = 0; node < grid->nodes; node++) {
        banyan_chunk slot = fused_slot(f, f->rank, f->at.inter, node);
        if (node == grid->node)
            add_own(&of, own, slot);
        else
            add_slot(&of, slot);
    }
    sum(f, &of, destination);
}

/* The node's sum of a row goes to the nodes whose it is: all of them, or the one whose share it is.
 */
static banyan_chunk send_row(fused *f, int row)
{
    const banyan_mixed_grid *grid = &f->grid;
    int dp = row / f->shares, share = row % f->shares;
    banyan_chunk data = sum_rows(f, dp, share, fused_slot(f, f->rank, f->at.partial, row));
    for (int tp = 0; tp < grid->inter_tp; tp++) {
        int node = fused_node_number(f, tp, dp);
        if (node != grid->node && (tp == share || !f->two_shots))
            put(f, fused_node(f, tp, dp), f->at.inter, grid->node, data);
    }
    return data;
}

static void scatter_between_nodes(fused *f)
{
    const banyan_mixed_grid *grid = &f->grid;
    int own_share = f->two_shots ? grid->inter_tp_rank : 0;
    int own_row = row_of(f, grid->inter_dp_rank, own_share);
    EACH_OTHER(grid->inter_dp * f->shares, own_row, row)
    (void)send_row(f, row);
    banyan_chunk own = send_row(f, own_row);
    sum_nodes(f, own, own_output(f, 0, own_share));
}

static void share_between_nodes(fused *f)
{
    const banyan_mixed_grid *grid = &f->grid;
    EACH_OTHER(grid->inter_tp, grid->inter_tp_rank, tp)
    put(f, fused_node(f, tp, grid->inter_dp_rank), f->at.across, grid->inter_tp_rank,
        own_output(f, 0, grid->inter_tp_rank));
    EACH_OTHER(grid->inter_tp, grid->inter_tp_rank, tp)
    unpack(f, own_output(f, 0, tp), f->at.across, tp);
}

static void share_in_node(fused *f)
{
    const banyan_mixed_grid *grid = &f->grid;
    int own = grid->local_tp_rank;
    EACH_OTHER(grid->local_tp, own, tp)
    for (int share = 0; share < f->shares; share++)
        put(f, fused_local(f, tp, grid->local_dp_rank), f->at.gathered, own * f->shares + share,
            fused_output(f, 0, own, share));
    EACH_OTHER(grid->local_tp, own, tp)
    for (int share = 0; share < f->shares; share++)
        unpack(f, fused_output(f, 0, tp, share), f->at.gathered, tp * f->shares + share);
}

static void scatter_by_parts(fused *f)
{
    put_rows(f);
    if (f->grid.nodes > 1)
        scatter_between_nodes(f);
    else
        (void)sum_rows(f, 0, 0, own_output(f, 0, 0));
    if (f->two_shots)
        share_between_nodes(f);
    share_in_node(f);
}

void fused_write_packets(fused *f)
{
    bool at_once = f->kind.mode == BANYAN_MIXED_FEWEST_WAITS;
    for (int rank = 0; rank < f->a.ranks; rank++) {
        fused_turn_to(f, rank);
        if (at_once && f->gathers)
            gather_at_once(f);
        else if (at_once)
            scatter_at_once(f);
        else if (f->gathers)
            gather_by_parts(f);
        else
            scatter_by_parts(f);
    }
}
