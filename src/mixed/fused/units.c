/* Units: long messages flow through a small ring of scratch, with signals for arrived data.
 *
 * The steps of a mode are stages, one thread block each, so that one unit's waits overlap with
 * another's work. Semaphores pass a unit from stage to stage of a rank. The first stage begins a
 * unit only after the last has finished the unit PIPELINE_AHEAD before. A result contains data
 * from every rank. So a rank that has finished unit i - PIPELINE_AHEAD knows that all ranks have
 * begun it. All ranks have therefore finished unit i - 2 · PIPELINE_AHEAD, whose place in the ring
 * unit i takes. The argument also holds for consecutive runs and the halves of scratch, with
 * packets as well. */
#include "mixed/fused/program.h"
#include "mixed/grid.h"

static banyan_program_semaphore *units_semaphore(fused *f, int initial)
{
    return banyan_program_semaphore_create(f->a.program, f->rank, (uint64_t)initial);
}

static void units_begin(fused *f)
{
    f->room = units_semaphore(f, PIPELINE_AHEAD);
    banyan_program_semaphore_acquire(f->room, 0, BANYAN_SYNC_BOTH);
}

static void units_go_on(fused *f)
{
    f->link = units_semaphore(f, 0);
    banyan_program_semaphore_release(f->link, f->stage, BANYAN_SYNC_BOTH);
    f->stage++;
    banyan_program_semaphore_acquire(f->link, f->stage, BANYAN_SYNC_BOTH);
}

static banyan_chunk units_mine(const fused *f, uint64_t region, int index)
{
    return fused_slot(f, f->rank, region, index);
}

static void units_keep(fused *f, banyan_chunk destination, banyan_chunk source)
{
    local_copy(&f->a, destination, source, f->stage);
}

static void units_put(fused *f, banyan_chunk slot, banyan_chunk data)
{
    remote_put(&f->a, slot, data, f->stage);
}

static void units_sum(fused *f, const fused_sum *of, banyan_chunk destination)
{
    if (of->own_at >= 0)
        f->a.parts[of->own_at] = of->own;
    local_reduce_parts(&f->a, of->count, destination, f->stage);
}

/* Results go to scratch, where the node's ranks read them. */
static banyan_chunk units_result(const fused *f, int row)
{
    return units_mine(f, f->at.gathered, row);
}

/* List the circle's ranks except this one, beginning with the next. */
static int list_others(const fused *f, fused_circle of, int *ranks)
{
    const banyan_mixed_grid *grid = &f->grid;
    int count = 0;
    switch (of) {
    case IN_ALL:
        EACH_OTHER(fused_ranks(f), f->rank, rank)
        ranks[count++] = rank;
        break;
    case IN_TP:
        EACH_OTHER(grid->local_tp, grid->local_tp_rank, tp)
        ranks[count++] = fused_local(f, tp, grid->local_dp_rank);
        break;
    case IN_NODE:
        EACH_OTHER(grid->local_size, grid->local_rank, local)
        ranks[count++] = fused_local(f, local % grid->local_tp, local / grid->local_tp);
        break;
    case AMONG_NODES:
        EACH_OTHER(grid->nodes, grid->node, node)
        ranks[count++] = fused_rank_on(f, node);
        break;
    case AMONG_TP_NODES:
        EACH_OTHER(grid->inter_tp, grid->inter_tp_rank, tp)
        ranks[count++] = fused_node(f, tp, grid->inter_dp_rank);
        break;
    }
    return count;
}

static void units_signal(fused *f, int mesh, fused_circle who)
{
    int *others = f->a.everyone, count = list_others(f, who, others);
    for (int i = 0; i < count; i++)
        mesh_signal(&f->a, mesh, f->rank, others[i], f->stage);
}

static void units_wait(fused *f, int mesh, fused_circle who)
{
    int *others = f->a.everyone, count = list_others(f, who, others);
    for (int i = 0; i < count; i++)
        mesh_wait(&f->a, mesh, f->rank, others[i], f->stage);
}

/* Synchronize in the next stage. */
static void units_barrier(fused *f, int mesh, fused_circle who)
{
    units_signal(f, mesh, who);
    if (list_others(f, who, f->a.everyone) == 0)
        return;
    units_go_on(f);
    units_wait(f, mesh, who);
}

/* Nothing is summed: read blocks where their ranks publish them. */
static void gather_shown(fused *f)
{
    units_keep(f, units_mine(f, f->at.first, 0), fused_input(f, 0, 0, 0));
    units_signal(f, MESH_LOCAL_FIRST, IN_ALL);
    units_keep(f, fused_output(f, f->grid.dp_index, 0, 0), fused_input(f, 0, 0, 0));
    units_go_on(f);
    units_wait(f, MESH_LOCAL_FIRST, IN_ALL);
    EACH_OTHER(fused_ranks(f), f->rank, peer)
    remote_get(&f->a, fused_output(f, grid_of_rank(&f->grid, peer).dp_index, 0, 0),
               fused_slot(f, peer, f->at.first, 0), f->stage);
}

static void units_gather_shares(fused *f)
{
    const banyan_mixed_grid *grid = &f->grid;
    /* the row of a node's share is the node's number */
    EACH_OTHER(grid->nodes, grid->node, node)
    units_put(f, fused_slot(f, fused_rank_on(f, node), f->at.gathered, grid->node),
              units_result(f, grid->node));
    units_barrier(f, MESH_NODES_LAST, AMONG_NODES);
}

/* Copy the data that the node's ranks publish into all their outputs. */
static void gather_in_node(fused *f)
{
    const banyan_mixed_grid *grid = &f->grid;
    int rows = fused_rows(f);
    units_signal(f, MESH_LOCAL_LAST, IN_NODE);
    for (int row = 0; row < rows; row++)
        units_keep(f,
                   fused_output(f, fused_block(f, grid->local_dp_rank, row / f->shares),
                                grid->local_tp_rank, row % f->shares),
                   units_result(f, row));
    if (grid->local_size == 1)
        return;
    units_go_on(f);
    units_wait(f, MESH_LOCAL_LAST, IN_NODE);
    EACH_OTHER(grid->local_size, grid->local_rank, local)
    {
        int tp = local % grid->local_tp, dp = local / grid->local_tp;
        for (int row = 0; row < rows; row++)
            remote_get(&f->a,
                       fused_output(f, fused_block(f, dp, row / f->shares), tp, row % f->shares),
                       fused_slot(f, fused_local(f, tp, dp), f->at.gathered, row), f->stage);
    }
}

static void units_share_between_nodes(fused *f)
{
    const banyan_mixed_grid *grid = &f->grid;
    int own = grid->inter_tp_rank;
    EACH_OTHER(grid->inter_tp, own, tp)
    units_put(f, fused_slot(f, fused_node(f, tp, grid->inter_dp_rank), f->at.gathered, own),
              units_result(f, own));
    units_barrier(f, MESH_NODES_LAST, AMONG_TP_NODES);
}

static void units_share_in_node(fused *f)
{
    const banyan_mixed_grid *grid = &f->grid;
    int own = grid->local_tp_rank;
    units_signal(f, MESH_LOCAL_LAST, IN_TP);
    for (int share = 0; share < f->shares; share++)
        units_keep(f, fused_output(f, 0, own, share), units_result(f, share));
    if (grid->local_tp == 1)
        return;
    units_go_on(f);
    units_wait(f, MESH_LOCAL_LAST, IN_TP);
    EACH_OTHER(grid->local_tp, own, tp)
    for (int share = 0; share < f->shares; share++)
        remote_get(&f->a, fused_output(f, 0, tp, share),
                   fused_slot(f, fused_local(f, tp, grid->local_dp_rank), f->at.gathered, share),
                   f->stage);
}

static const fused_form units = {
    .put = units_put,
    .sum = units_sum,
    .barrier = units_barrier,
    .result = units_result,
    .gather_shares = units_gather_shares,
    .gather_in_node = gather_in_node,
    .share_between_nodes = units_share_between_nodes,
    .share_in_node = units_share_in_node,
};

static void units_write_rank(fused *f)
{
    bool shown = f->kind.mode == BANYAN_MIXED_ONE_SHOT && f->gathers && f->grid.tp == 1;
    units_begin(f);
    if (shown && fused_ranks(f) > 1)
        gather_shown(f);
    else
        fused_walk(f);
    banyan_program_semaphore_release(f->room, f->stage, BANYAN_SYNC_BOTH);
}

void fused_write_units(fused *f)
{
    f->form = &units;
    banyan_program_loop_begin(f->a.program, f->a.unit_bytes, 1);
    for (int rank = 0; rank < f->a.ranks; rank++) {
        fused_turn_to(f, rank);
        units_write_rank(f);
    }
    banyan_program_loop_end(f->a.program);
}
