#include <banyan/core.h>

banyan_rank_set banyan_rank_set_one(int rank)
{
    banyan_rank_set set = {.first = rank};
    for (int k = 0; k < BANYAN_RANK_SET_LEVELS; k++)
        set.count[k] = 1;
    return set;
}

int64_t banyan_rank_set_size(const banyan_rank_set *set)
{
    int64_t size = 1;
    for (int k = 0; k < BANYAN_RANK_SET_LEVELS; k++)
        size *= set->count[k];
    return size;
}

int banyan_rank_set_at(const banyan_rank_set *set, int64_t index)
{
    int64_t rank = set->first;
    for (int k = BANYAN_RANK_SET_LEVELS - 1; k >= 0; k--) {
        rank += index % set->count[k] * set->stride[k];
        index /= set->count[k];
    }
    return (int)rank;
}

/* Levels need not nest by size: a slow level may have the smaller stride. So each index of a level
 * is tried. The recursion is at most BANYAN_RANK_SET_LEVELS deep, and the last level is solved by
 * division. */
static int64_t find_below(const banyan_rank_set *set, int level, int64_t distance, int64_t index)
{
    int64_t count = set->count[level], stride = set->stride[level];
    if (level == BANYAN_RANK_SET_LEVELS - 1) {
        if (count <= 1)
            return count == 1 && distance == 0 ? index : -1;
        if (stride == 0 || distance % stride != 0 || distance / stride < 0 ||
            distance / stride >= count)
            return -1;
        return index * count + distance / stride;
    }
    for (int64_t i = 0; i < count; i++) {
        int64_t found = find_below(set, level + 1, distance - i * stride, index * count + i);
        if (found >= 0)
            return found;
    }
    return -1;
}

int64_t banyan_rank_set_find(const banyan_rank_set *set, int rank)
{
    return find_below(set, 0, (int64_t)rank - set->first, 0);
}
