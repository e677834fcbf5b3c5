#include "mixed/fused/program.h"

#include "mixed/grid.h"

void fused_turn_to(fused *f, int rank)
{
    f->grid = grid_of_rank(&f->grid, rank);
    f->rank = rank;
    f->stage = 0;
    f->room = f->link = NULL;
}

int fused_ranks(const fused *f)
{
    return f->grid.nodes * f->grid.local_size;
}

int fused_local(const fused *f, int tp, int dp)
{
    return f->grid.node * f->grid.local_size + dp * f->grid.local_tp + tp;
}

int fused_node_number(const fused *f, int inter_tp, int inter_dp)
{
    return inter_tp + inter_dp * f->grid.inter_tp;
}

int fused_rank_on(const fused *f, int node)
{
    return node * f->grid.local_size + f->grid.local_rank;
}

int fused_node(const fused *f, int inter_tp, int inter_dp)
{
    return fused_rank_on(f, fused_node_number(f, inter_tp, inter_dp));
}

int fused_block(const fused *f, int local_dp, int inter_dp)
{
    return local_dp + inter_dp * f->grid.local_dp;
}

int fused_rows(const fused *f)
{
    return f->grid.inter_dp * f->shares;
}

static int chunk_of(const fused *f, int block, int part, int share)
{
    return block * f->chunks + part * f->shares + share;
}

banyan_chunk fused_input(const fused *f, int block, int part, int share)
{
    return input_at(&f->a, f->rank, chunk_of(f, f->gathers ? 0 : block, part, share));
}

banyan_chunk fused_output(const fused *f, int block, int part, int share)
{
    return output_at(&f->a, f->rank, chunk_of(f, f->gathers ? block : 0, part, share));
}

banyan_chunk fused_slot(const fused *f, int rank, uint64_t region, int index)
{
    return slot_at(&f->a, rank, region + (uint64_t)index);
}
