#include "reshard/planner/groups.h"

/* A holder, and its place among all. */
typedef struct placed_rank {
    int node, rank;
    size_t place;
} placed_rank;

static int compare_placed(const void *left, const void *right)
{
    const placed_rank *a = left, *b = right;
    RETURN_IF_UNEQUAL(a->node, b->node);
    return COMPARE(a->place, b->place);
}

static placed_rank *list_placed(const planner_groups *groups, const planner_holders *holders)
{
    placed_rank *placed = alloc_zeroed((size_t)holders->count, sizeof *placed, "a box's holders");
    size_t count = 0;
    for (size_t s = 0; placed && s < holders->set_count; s++) {
        int64_t size = banyan_rank_set_size(&holders->sets[s]);
        for (int64_t i = 0; i < size; i++, count++) {
            int rank = banyan_rank_set_at(&holders->sets[s], i);
            placed[count] = (placed_rank){groups->node_of[rank], rank, count};
        }
    }
    if (placed)
        sort_elements(placed, count, sizeof *placed, compare_placed);
    return placed;
}

/* Keep the ranks of this rank's node as sets of one, which the rule for senders takes. */
static bool keep_own(planner_groups *groups, planner_group *group)
{
    size_t at = planner_group_find(group, groups->node);
    if (at == SIZE_MAX)
        return true;
    size_t count = group->first[at + 1] - group->first[at];
    banyan_rank_set *sets = arena_take(&groups->memory, count * sizeof *sets);
    if (!sets)
        return false;
    for (size_t i = 0; i < count; i++)
        sets[i] = banyan_rank_set_one(group->ranks[group->first[at] + i]);
    group->own = (planner_holders){sets, count, (int64_t)count};
    return true;
}

static planner_group *make_receiver_group(planner_groups *groups, const placed_rank *placed,
                                          size_t count)
{
    planner_group *group = arena_zeroed(&groups->memory, 1, sizeof *group);
    int *nodes = arena_take(&groups->memory, count * sizeof *nodes);
    int *ranks = arena_take(&groups->memory, count * sizeof *ranks);
    size_t *first = arena_take(&groups->memory, (count + 1) * sizeof *first);
    if (!group || !nodes || !ranks || !first)
        return NULL;
    for (size_t i = 0; i < count; i++) {
        ranks[i] = placed[i].rank;
        if (i > 0 && placed[i].node == placed[i - 1].node)
            continue;
        nodes[group->node_count] = placed[i].node;
        first[group->node_count++] = i;
    }
    first[group->node_count] = count;
    group->nodes = nodes;
    group->ranks = ranks;
    group->first = first;
    for (size_t n = 0; n < group->node_count; n++)
        if (first[n + 1] - first[n] > group->most)
            group->most = first[n + 1] - first[n];
    return keep_own(groups, group) ? group : NULL;
}

const planner_group *planner_group_of(planner_groups *groups, const planner_holders *holders)
{
    size_t key_bytes = holders->set_count * sizeof holders->sets[0];
    uint64_t known;
    if (map_get(&groups->known, holders->sets, key_bytes, &known))
        return (const planner_group *)(uintptr_t)known;
    placed_rank *placed = list_placed(groups, holders);
    if (!placed)
        return NULL;
    planner_group *made = make_receiver_group(groups, placed, (size_t)holders->count);
    free(placed);
    if (!made || !map_put_copy(&groups->known, &groups->memory, holders->sets, key_bytes,
                               (uint64_t)(uintptr_t)made))
        return NULL;
    return made;
}

size_t planner_group_find(const planner_group *group, int node)
{
    size_t at = BISECT(i, 0, group->node_count, group->nodes[i] < node);
    return at < group->node_count && group->nodes[at] == node ? at : SIZE_MAX;
}

void planner_groups_free(planner_groups *groups)
{
    map_free(&groups->known);
    arena_free(&groups->memory);
}
