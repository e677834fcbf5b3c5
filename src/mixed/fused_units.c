/* Units: long messages flow through a small ring of scratch, and what peers wait for is signalled.
 *
 * The steps of a mode are stages, a thread block each, so that one unit's waiting overlaps with
 * another's work. A unit goes from stage to stage of a rank by semaphores, and the first takes it
 * up only when the last has done with the unit PIPELINE_AHEAD before. A result has something of
 * every rank in it: who has done with unit i - PIPELINE_AHEAD knows that all ranks have taken it
 * up, and so that all have done with unit i - 2 · PIPELINE_AHEAD, whose place in the ring unit i
 * takes. The same holds for consecutive runs and the halves of scratch, packets' as well. */
#include "mixed/fused_program.h"
#include "mixed/grid.h"

static banyan_semaphore *semaphore(fused *f, int initial)
{
    return banyan_semaphore_create(f->a.program, f->rank, (uint64_t)initial);
}

static void begin(fused *f)
{
    f->room = semaphore(f, PIPELINE_AHEAD);
    banyan_semaphore_acquire(f->room, 0, BANYAN_SYNC_BOTH);
}

static void go_on(fused *f)
{
    f->link = semaphore(f, 0);
    banyan_semaphore_release(f->link, f->stage, BANYAN_SYNC_BOTH);
    f->stage++;
    banyan_semaphore_acquire(f->link, f->stage, BANYAN_SYNC_BOTH);
}

static void end(fused *f)
{
    banyan_semaphore_release(f->room, f->stage, BANYAN_SYNC_BOTH);
}

static banyan_chunk mine(const fused *f, uint64_t region, int index)
{
    return fused_slot(f, f->rank, region, index);
}

static void put(fused *f, int peer, uint64_t region, int index, banyan_chunk data)
{
    remote_put(&f->a, fused_slot(f, peer, region, index), data, f->stage);
}

static void add_up(fused *f, int count, banyan_chunk destination)
{
    local_reduce_parts(&f->a, count, destination, f->stage);
}

static void keep(fused *f, banyan_chunk destination, banyan_chunk source)
{
    local_copy(&f->a, destination, source, f->stage);
}

/* ---- telling groups ---- */

typedef enum circle { IN_ALL, IN_TP, IN_NODE, AMONG_NODES, AMONG_TP_NODES } circle;

/* The circle's ranks but this one, beginning with the next. */
static int list_others(const fused *f, circle of, int *ranks)
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
        ranks[count++] = fused_node(f, node % grid->inter_tp, node / grid->inter_tp);
        break;
    case AMONG_TP_NODES:
        EACH_OTHER(grid->inter_tp, grid->inter_tp_rank, tp)
        ranks[count++] = fused_node(f, tp, grid->inter_dp_rank);
        break;
    }
    return count;
}

static void tell(fused *f, int mesh, circle who)
{
    int *others = f->a.everyone, count = list_others(f, who, others);
    for (int i = 0; i < count; i++)
        mesh_signal(&f->a, mesh, f->rank, others[i], f->stage);
}

static void hear(fused *f, int mesh, circle who)
{
    int *others = f->a.everyone, count = list_others(f, who, others);
    for (int i = 0; i < count; i++)
        mesh_wait(&f->a, mesh, f->rank, others[i], f->stage);
}

/* ---- fewest waits ---- */

/* Nothing is summed: blocks are read where their ranks show them. */
static void gather_shown(fused *f)
{
    keep(f, mine(f, f->at.first, 0), fused_input(f, 0, 0, 0));
    tell(f, MESH_LOCAL_FIRST, IN_ALL);
    keep(f, fused_output(f, f->grid.dp_index, 0, 0), fused_input(f, 0, 0, 0));
    go_on(f);
    hear(f, MESH_LOCAL_FIRST, IN_ALL);
    EACH_OTHER(fused_ranks(f), f->rank, peer)
    {
        int node = peer / f->grid.local_size, local = peer % f->grid.local_size;
        int block = fused_block(f, local / f->grid.local_tp, node / f->grid.inter_tp);
        remote_get(&f->a, fused_output(f, block, 0, 0), fused_slot(f, peer, f->at.first, 0),
                   f->stage);
    }
}

static void gather_at_once(fused *f)
{
    const banyan_mixed_grid *grid = &f->grid;
    EACH_OTHER(fused_ranks(f), f->rank, peer)
    put(f, peer, f->at.first, f->rank, fused_input(f, 0, 0, 0));
    tell(f, MESH_LOCAL_FIRST, IN_ALL);
    go_on(f);
    hear(f, MESH_LOCAL_FIRST, IN_ALL);
    for (int dp = 0; dp < grid->dp; dp++) {
        for (int tp = 0; tp < grid->tp; tp++) {
            int source = grid_rank_at(grid, tp, dp);
            f->a.parts[tp] =
                source == f->rank ? fused_input(f, 0, 0, 0) : mine(f, f->at.first, source);
        }
        add_up(f, grid->tp, fused_output(f, dp, 0, 0));
    }
}

static void scatter_at_once(fused *f)
{
    const banyan_mixed_grid *grid = &f->grid;
    EACH_OTHER(fused_ranks(f), f->rank, peer)
    {
        int node = peer / grid->local_size, local = peer % grid->local_size;
        int block = fused_block(f, local / grid->local_tp, node / grid->inter_tp);
        put(f, peer, f->at.first, f->rank, fused_input(f, block, 0, 0));
    }
    tell(f, MESH_LOCAL_FIRST, IN_ALL);
    go_on(f);
    hear(f, MESH_LOCAL_FIRST, IN_ALL);
    for (int source = 0; source < fused_ranks(f); source++)
        f->a.parts[source] =
            source == f->rank ? fused_input(f, grid->dp_index, 0, 0) : mine(f, f->at.first, source);
    add_up(f, fused_ranks(f), fused_output(f, 0, 0, 0));
}

/* ---- inside the node, first ---- */

static void put_parts(fused *f)
{
    const banyan_mixed_grid *grid = &f->grid;
    EACH_OTHER(grid->local_tp, grid->local_tp_rank, tp)
    for (int share = 0; share < f->shares; share++)
        put(f, fused_local(f, tp, grid->local_dp_rank), f->at.first,
            grid->local_tp_rank * f->shares + share, fused_input(f, 0, tp, share));
    tell(f, MESH_LOCAL_FIRST, IN_TP);
    if (grid->local_tp == 1)
        return;
    go_on(f);
    hear(f, MESH_LOCAL_FIRST, IN_TP);
}

/* The sum over the node's tensor-parallel ranks of one share of the rank's part: where it is, which
 * is `destination` if there is anything to add. */
static banyan_chunk sum_part(fused *f, int share, banyan_chunk destination)
{
    const banyan_mixed_grid *grid = &f->grid;
    if (grid->local_tp == 1)
        return fused_input(f, 0, 0, share);
    for (int tp = 0; tp < grid->local_tp; tp++)
        f->a.parts[tp] = mine(f, f->at.first, tp * f->shares + share);
    f->a.parts[grid->local_tp_rank] = fused_input(f, 0, grid->local_tp_rank, share);
    add_up(f, grid->local_tp, destination);
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
    tell(f, MESH_LOCAL_FIRST, IN_NODE);
    if (grid->local_size == 1)
        return;
    go_on(f);
    hear(f, MESH_LOCAL_FIRST, IN_NODE);
}

/* The same over all ranks of the node, of a block for nodes of `inter_dp`. */
static banyan_chunk sum_rows(fused *f, int inter_dp, int share, banyan_chunk destination)
{
    const banyan_mixed_grid *grid = &f->grid;
    int rows = grid->inter_dp * f->shares, block = fused_block(f, grid->local_dp_rank, inter_dp);
    if (grid->local_size == 1)
        return fused_input(f, block, 0, share);
    for (int local = 0; local < grid->local_size; local++)
        f->a.parts[local] = mine(f, f->at.first, local * rows + inter_dp * f->shares + share);
    f->a.parts[grid->local_rank] = fused_input(f, block, grid->local_tp_rank, share);
    add_up(f, grid->local_size, destination);
    return destination;
}

/* ---- gathering ---- */

static void gather_between_nodes(fused *f)
{
    const banyan_mixed_grid *grid = &f->grid;
    banyan_chunk own = sum_part(f, 0, mine(f, f->at.partial, 0));
    EACH_OTHER(grid->nodes, grid->node, node)
    put(f, node * grid->local_size + grid->local_rank, f->at.inter, grid->node, own);
    tell(f, MESH_NODES_FIRST, AMONG_NODES);
    go_on(f);
    hear(f, MESH_NODES_FIRST, AMONG_NODES);
    for (int dp = 0; dp < grid->inter_dp; dp++) {
        for (int tp = 0; tp < grid->inter_tp; tp++) {
            int node = fused_node_number(f, tp, dp);
            f->a.parts[tp] = node == grid->node ? own : mine(f, f->at.inter, node);
        }
        add_up(f, grid->inter_tp, mine(f, f->at.gathered, dp));
    }
}

/* The node's share of the sums of its tensor-parallel group of nodes goes to all nodes. */
static void gather_in_shares(fused *f)
{
    const banyan_mixed_grid *grid = &f->grid;
    int own_dp = grid->inter_dp_rank, own_tp = grid->inter_tp_rank;
    int shown = own_dp * f->shares + own_tp;
    EACH_OTHER(grid->inter_tp, own_tp, tp)
    put(f, fused_node(f, tp, own_dp), f->at.inter, grid->node,
        sum_part(f, tp, mine(f, f->at.partial, tp)));
    banyan_chunk own = sum_part(f, own_tp, mine(f, f->at.partial, own_tp));
    tell(f, MESH_NODES_FIRST, AMONG_TP_NODES);
    go_on(f);
    hear(f, MESH_NODES_FIRST, AMONG_TP_NODES);
    for (int tp = 0; tp < grid->inter_tp; tp++)
        f->a.parts[tp] = mine(f, f->at.inter, fused_node_number(f, tp, own_dp));
    f->a.parts[own_tp] = own;
    add_up(f, grid->inter_tp, mine(f, f->at.gathered, shown));
    EACH_OTHER(grid->nodes, grid->node, node)
    put(f, node * grid->local_size + grid->local_rank, f->at.gathered, shown,
        mine(f, f->at.gathered, shown));
    tell(f, MESH_NODES_LAST, AMONG_NODES);
    go_on(f);
    hear(f, MESH_NODES_LAST, AMONG_NODES);
}

/* What the ranks of the node show goes into all their outputs. */
static void gather_in_node(fused *f)
{
    const banyan_mixed_grid *grid = &f->grid;
    int rows = grid->inter_dp * f->shares;
    tell(f, MESH_LOCAL_LAST, IN_NODE);
    for (int row = 0; row < rows; row++)
        keep(f,
             fused_output(f, fused_block(f, grid->local_dp_rank, row / f->shares),
                          grid->local_tp_rank, row % f->shares),
             mine(f, f->at.gathered, row));
    if (grid->local_size == 1)
        return;
    go_on(f);
    hear(f, MESH_LOCAL_LAST, IN_NODE);
    EACH_OTHER(grid->local_size, grid->local_rank, local)
    {
        int tp = local % grid->local_tp, dp = local / grid->local_tp;
        for (int row = 0; row < rows; row++)
            remote_get(&f->a,
                       fused_output(f, fused_block(f, dp, row / f->shares), tp, row % f->shares),
                       fused_slot(f, fused_local(f, tp, dp), f->at.gathered, row), f->stage);
    }
}

static void gather_by_parts(fused *f)
{
    put_parts(f);
    if (f->two_shots)
        gather_in_shares(f);
    else if (f->grid.nodes > 1)
        gather_between_nodes(f);
    else
        (void)sum_part(f, 0, mine(f, f->at.gathered, 0));
    gather_in_node(f);
}

/* ---- scattering ---- */

/* The node's sum of a row goes to the nodes whose it is: all of them, or the one whose share it is.
 */
static banyan_chunk send_row(fused *f, int row)
{
    const banyan_mixed_grid *grid = &f->grid;
    int dp = row / f->shares, share = row % f->shares;
    banyan_chunk sum = sum_rows(f, dp, share, mine(f, f->at.partial, row));
    for (int tp = 0; tp < grid->inter_tp; tp++) {
        int node = fused_node_number(f, tp, dp);
        if (node != grid->node && (tp == share || !f->two_shots))
            put(f, fused_node(f, tp, dp), f->at.inter, grid->node, sum);
    }
    return sum;
}

/* Who gets a row from all nodes adds it up. */
static void scatter_between_nodes(fused *f)
{
    const banyan_mixed_grid *grid = &f->grid;
    int own_share = f->two_shots ? grid->inter_tp_rank : 0;
    int own_row = grid->inter_dp_rank * f->shares + own_share;
    EACH_OTHER(grid->inter_dp * f->shares, own_row, row)
    (void)send_row(f, row);
    banyan_chunk own = send_row(f, own_row);
    tell(f, MESH_NODES_FIRST, AMONG_NODES);
    go_on(f);
    hear(f, MESH_NODES_FIRST, AMONG_NODES);
    for (int node = 0; node < grid->nodes; node++)
        f->a.parts[node] = node == grid->node ? own : mine(f, f->at.inter, node);
    add_up(f, grid->nodes, mine(f, f->at.gathered, own_share));
}

static void share_between_nodes(fused *f)
{
    const banyan_mixed_grid *grid = &f->grid;
    int own = grid->inter_tp_rank;
    EACH_OTHER(grid->inter_tp, own, tp)
    put(f, fused_node(f, tp, grid->inter_dp_rank), f->at.gathered, own,
        mine(f, f->at.gathered, own));
    tell(f, MESH_NODES_LAST, AMONG_TP_NODES);
    go_on(f);
    hear(f, MESH_NODES_LAST, AMONG_TP_NODES);
}

static void share_in_node(fused *f)
{
    const banyan_mixed_grid *grid = &f->grid;
    int own = grid->local_tp_rank;
    tell(f, MESH_LOCAL_LAST, IN_TP);
    for (int share = 0; share < f->shares; share++)
        keep(f, fused_output(f, 0, own, share), mine(f, f->at.gathered, share));
    if (grid->local_tp == 1)
        return;
    go_on(f);
    hear(f, MESH_LOCAL_LAST, IN_TP);
    EACH_OTHER(grid->local_tp, own, tp)
    for (int share = 0; share < f->shares; share++)
        remote_get(&f->a, fused_output(f, 0, tp, share),
                   fused_slot(f, fused_local(f, tp, grid->local_dp_rank), f->at.gathered, share),
                   f->stage);
}

static void scatter_by_parts(fused *f)
{
    put_rows(f);
    if (f->grid.nodes > 1)
        scatter_between_nodes(f);
    else
        (void)sum_rows(f, 0, 0, mine(f, f->at.gathered, 0));
    if (f->two_shots)
        share_between_nodes(f);
    share_in_node(f);
}

static void write_rank(fused *f)
{
    bool at_once = f->kind.mode == BANYAN_MIXED_FEWEST_WAITS;
    if (fused_ranks(f) == 1)
        keep(f, fused_output(f, 0, 0, 0), fused_input(f, 0, 0, 0));
    else if (at_once && f->gathers && f->grid.tp == 1)
        gather_shown(f);
    else if (at_once && f->gathers)
        gather_at_once(f);
    else if (at_once)
        scatter_at_once(f);
    else if (f->gathers)
        gather_by_parts(f);
    else
        scatter_by_parts(f);
}

void fused_write_units(fused *f)
{
    banyan_loop_begin(f->a.program, f->a.unit_bytes, 1);
    for (int rank = 0; rank < f->a.ranks; rank++) {
        fused_turn_to(f, rank);
        begin(f);
        write_rank(f);
        end(f);
    }
    banyan_loop_end(f->a.program);
}
