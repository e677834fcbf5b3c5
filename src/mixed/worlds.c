#include "mixed/worlds.h"

#include <stdio.h>
#include <stdlib.h>

#include "core/error.h"
#include "mixed/grid.h"
#include "mixed/mixed.h"
#include "world/control.h"

static int group_size(const banyan_mixed_grid *grid, mixed_group group)
{
    switch (group) {
    case MIXED_NODE:
        return grid->local_size;
    case MIXED_TP:
        return grid->tp;
    case MIXED_DP:
        return grid->dp;
    default:
        return grid->nodes * grid->local_size;
    }
}

/* Return the world rank of the group's index-th member; `grid` belongs to one of the members. */
static int member_at(const banyan_mixed_grid *grid, mixed_group group, int index)
{
    switch (group) {
    case MIXED_NODE:
        return grid->node * grid->local_size + index;
    case MIXED_TP:
        return grid_rank_at(grid, index, grid->dp_index);
    case MIXED_DP:
        return grid_rank_at(grid, grid->tp_index, index);
    default:
        return index;
    }
}

/* Abandon `half`: closing it would wait for members that do not have it. */
static banyan_status worlds_give_up(banyan_world *worlds[MIXED_GROUPS], banyan_world *half,
                                    banyan_status status)
{
    error_kept kept = error_keep(status);
    if (half)
        (void)banyan_world_abort(half, kept.message);
    worlds_close(worlds);
    return error_again(&kept);
}

banyan_status worlds_open(banyan_world *world, const banyan_mixed_grid *grid,
                          banyan_world *worlds[MIXED_GROUPS])
{
    size_t bytes = (size_t)banyan_world_size(world) * sizeof(int);
    int *ranks = malloc(bytes);
    banyan_world *latest = NULL;
    for (int group = 0; group < MIXED_GROUPS; group++)
        worlds[group] = NULL;
    banyan_status status = control_agree(
        world, ranks ? BANYAN_OK : error_no_memory(bytes, "the groups of a mixed grid"));
    for (int group = 0; group < MIXED_GROUPS && status == BANYAN_OK; group++) {
        int count = group_size(grid, (mixed_group)group);
        for (int i = 0; i < count; i++)
            ranks[i] = member_at(grid, (mixed_group)group, i);
        banyan_world *parent = group == MIXED_WORLD ? world : worlds[MIXED_WORLD];
        status = control_agree(world, banyan_world_split(parent, ranks, count, &worlds[group]));
        latest = worlds[group];
    }
    free(ranks);
    return status == BANYAN_OK ? BANYAN_OK : worlds_give_up(worlds, latest, status);
}

bool worlds_end_together(banyan_world *parent, banyan_world *worlds[MIXED_GROUPS],
                         const error_kept *why)
{
    banyan_status ended = parent ? control_check(parent) : BANYAN_OK;
    for (int group = 0; group < MIXED_GROUPS && ended == BANYAN_OK; group++)
        ended = worlds[group] ? control_check(worlds[group]) : BANYAN_OK;
    error_kept kept = why ? *why : error_keep(ended);
    for (int group = 0; group < MIXED_GROUPS && ended != BANYAN_OK; group++) {
        if (worlds[group] &&
            kept.status == BANYAN_ERR_PEER_LOST) /* the lost peer is not in every group */
            (void)banyan_world_abort(worlds[group], kept.message);
        else if (worlds[group])
            (void)control_fail(worlds[group], error_again(&kept));
    }
    return ended != BANYAN_OK;
}

void worlds_close(banyan_world *worlds[MIXED_GROUPS])
{
    for (int group = MIXED_GROUPS; group-- > 0;) {
        (void)banyan_world_close(worlds[group]);
        worlds[group] = NULL;
    }
}

bool worlds_are_near(const banyan_world *world, const banyan_mixed_grid *grid, mixed_group group)
{
    int ranks = grid->nodes * grid->local_size;
    for (int r = 0; r < ranks; r++) {
        banyan_mixed_grid its = grid_of_rank(grid, r);
        int first = member_at(&its, group, 0);
        if (banyan_world_node_of(world, r) != banyan_world_node_of(world, first))
            return false;
    }
    return true;
}

/* An error that all ranks received takes precedence over one that only repeats it. */
banyan_status mixed_stop_groups(banyan_mixed *mixed, banyan_status status)
{
    error_kept kept = error_keep(status);
    banyan_world *all = mixed->setup.worlds[MIXED_WORLD]; /* NULL: suspended, in no world */
    banyan_status ended_with = all ? control_check(all) : BANYAN_OK;
    if (ended_with != BANYAN_OK && status == BANYAN_ERR_ABORTED)
        kept = error_keep(ended_with);
    bool ended = worlds_end_together(mixed->world, mixed->setup.worlds, &kept);
    if (ended && mixed->failed.status == BANYAN_OK)
        mixed->failed = kept;
    return error_again(&kept);
}
