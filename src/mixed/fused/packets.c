/* Packets: data with its own arrival flag, so that no signals are needed. One thread block for
 * each rank. */
#include "mixed/fused/program.h"

static void fused_packets_put(fused *f, banyan_chunk slot, banyan_chunk data)
{
    remote_put_packets(&f->a, slot, data, 0);
}

static void fused_packets_unpack(fused *f, banyan_chunk destination, uint64_t region, int index)
{
    banyan_program_unpack_packets(f->a.program, f->rank, destination,
                                  fused_slot(f, f->rank, region, index), BANYAN_TB(0));
}

static void fused_packets_reduce(fused *f, banyan_chunk first, const banyan_chunk *others,
                                 int count, banyan_chunk destination)
{
    banyan_program_reduce_packets(f->a.program, f->rank, first, others, count, destination, f->a.op,
                                  BANYAN_TB(0));
}

/* The operation begins with data: the rank's own if it is first, or second, since the order of two
 * summands does not matter. */
static void fused_packets_sum(fused *f, const fused_sum *of, banyan_chunk destination)
{
    banyan_chunk *slots = f->a.parts;
    bool begins = of->own_at == 0 || of->own_at == 1;
    if (of->count == 1 && begins) {
        local_copy(&f->a, destination, of->own, 0);
    } else if (begins) {
        if (of->own_at == 1)
            slots[1] = slots[0];
        fused_packets_reduce(f, of->own, slots + 1, of->count - 1, destination);
    } else {
        if (of->own_at > 1)
            banyan_program_copy_packets(f->a.program, f->rank, slots[of->own_at], of->own,
                                        BANYAN_TB(0));
        banyan_program_unpack_packets(f->a.program, f->rank, destination, slots[0], BANYAN_TB(0));
        if (of->count > 1)
            fused_packets_reduce(f, destination, slots + 1, of->count - 1, destination);
    }
}

/* Results go to the output. */
static banyan_chunk fused_packets_result(const fused *f, int row)
{
    return fused_output(f, fused_block(f, f->grid.local_dp_rank, row / f->shares),
                        f->grid.local_tp_rank, row % f->shares);
}

/* Put the results to all ranks of the node. */
static void fused_packets_hand_out(fused *f, int row)
{
    const banyan_mixed_grid *grid = &f->grid;
    int index = grid->local_rank * fused_rows(f) + row;
    EACH_OTHER(grid->local_size, grid->local_rank, local)
    fused_packets_put(f,
                      fused_slot(f, grid->node * grid->local_size + local, f->at.gathered, index),
                      fused_packets_result(f, row));
}

static void fused_packets_gather_shares(fused *f)
{
    const banyan_mixed_grid *grid = &f->grid;
    /* the row of a node's share is the node's number */
    EACH_OTHER(grid->nodes, grid->node, node)
    fused_packets_put(f, fused_slot(f, fused_rank_on(f, node), f->at.across, grid->node),
                      fused_packets_result(f, grid->node));
    fused_packets_hand_out(f, grid->node);
    EACH_OTHER(grid->nodes, grid->node, node)
    {
        fused_packets_unpack(f, fused_packets_result(f, node), f->at.across, node);
        fused_packets_hand_out(f, node);
    }
}

static void take_in(fused *f)
{
    const banyan_mixed_grid *grid = &f->grid;
    int rows = fused_rows(f);
    EACH_OTHER(grid->local_size, grid->local_rank, local)
    {
        for (int row = 0; row < rows; row++) {
            int block = fused_block(f, local / grid->local_tp, row / f->shares);
            fused_packets_unpack(f, fused_output(f, block, local % grid->local_tp, row % f->shares),
                                 f->at.gathered, local * rows + row);
        }
    }
}

static void fused_packets_share_between_nodes(fused *f)
{
    const banyan_mixed_grid *grid = &f->grid;
    int own = grid->inter_tp_rank;
    EACH_OTHER(grid->inter_tp, own, tp)
    fused_packets_put(f, fused_slot(f, fused_node(f, tp, grid->inter_dp_rank), f->at.across, own),
                      fused_packets_result(f, own));
    EACH_OTHER(grid->inter_tp, own, tp)
    fused_packets_unpack(f, fused_packets_result(f, tp), f->at.across, tp);
}

static void fused_packets_share_in_node(fused *f)
{
    const banyan_mixed_grid *grid = &f->grid;
    int own = grid->local_tp_rank;
    EACH_OTHER(grid->local_tp, own, tp)
    for (int share = 0; share < f->shares; share++)
        fused_packets_put(f,
                          fused_slot(f, fused_local(f, tp, grid->local_dp_rank), f->at.gathered,
                                     own * f->shares + share),
                          fused_packets_result(f, share));
    EACH_OTHER(grid->local_tp, own, tp)
    for (int share = 0; share < f->shares; share++)
        fused_packets_unpack(f, fused_output(f, 0, tp, share), f->at.gathered,
                             tp * f->shares + share);
}

static const fused_form packets = {
    .put = fused_packets_put,
    .sum = fused_packets_sum,
    .result = fused_packets_result,
    .show = fused_packets_hand_out,
    .gather_shares = fused_packets_gather_shares,
    .gather_in_node = take_in,
    .share_between_nodes = fused_packets_share_between_nodes,
    .share_in_node = fused_packets_share_in_node,
};

void fused_write_packets(fused *f)
{
    f->form = &packets;
    for (int rank = 0; rank < f->a.ranks; rank++) {
        fused_turn_to(f, rank);
        fused_walk(f);
    }
}
