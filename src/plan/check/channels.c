#include <string.h>

#include "core/containers.h"
#include "plan/check/check.h"
#include "plan/op.h"

static banyan_status check_peers(plan_checker *check, int r, plan_channel_type type)
{
    const plan_rank *rank = &check->plan->ranks[r];
    size_t key = json_path_key(&check->path, plan_channel_name(type));
    for (uint32_t i = 0; i < rank->channel_count[type]; i++) {
        size_t mark = json_path_index(&check->path, i);
        int peer = rank->peers[type][i];
        if (peer < 0 || peer >= check->plan->rank_count)
            return json_path_fail(&check->path, "leads to rank %d, and the plan has %d ranks", peer,
                                  check->plan->rank_count);
        if (peer == r)
            return json_path_fail(&check->path, "leads from rank %d to itself", r);
        json_path_pop(&check->path, mark);
    }
    json_path_pop(&check->path, key);
    return BANYAN_OK;
}

/* `number` is the group's number among those of all ranks, from 1; `seen[rank]` is the number of
 * the last group that contained the rank. */
static banyan_status check_members(plan_checker *check, int r, const plan_switch *group,
                                   uint64_t number, uint64_t *seen, check_region *region)
{
    const banyan_plan *plan = check->plan;
    bool member = false;
    *region = (check_region){-1, UINT64_MAX};
    for (int i = 0; i < group->rank_count; i++) {
        int rank = group->ranks[i];
        if (rank < 0 || rank >= plan->rank_count)
            return json_path_fail(&check->path, "has rank %d, and the plan has %d ranks", rank,
                                  plan->rank_count);
        if (seen[rank] == number)
            return json_path_fail(&check->path, "has rank %d twice", rank);
        seen[rank] = number;
        member = member || rank == r;
        uint64_t chunks = plan->ranks[rank].chunks[group->buffer];
        if (chunks < region->chunks)
            *region = (check_region){rank, chunks};
    }
    if (!member)
        return json_path_fail(&check->path, "is a channel of rank %d, which is none of its ranks",
                              r);
    return BANYAN_OK;
}

/* `*number` counts the groups of all ranks, so `seen` is cleared only once. */
static banyan_status check_switches(plan_checker *check, int r, uint64_t *seen, uint64_t *number)
{
    const plan_rank *rank = &check->plan->ranks[r];
    uint32_t count = rank->channel_count[PLAN_SWITCH];
    check->regions[r] = arena_take(&check->memory, count * sizeof **check->regions);
    if (!check->regions[r])
        return BANYAN_ERR_NO_MEMORY;
    size_t key = json_path_key(&check->path, plan_channel_name(PLAN_SWITCH));
    for (uint32_t i = 0; i < count; i++) {
        size_t mark = json_path_index(&check->path, i);
        RETURN_IF_FAILED(
            check_members(check, r, &rank->switches[i], ++*number, seen, &check->regions[r][i]));
        json_path_pop(&check->path, mark);
    }
    json_path_pop(&check->path, key);
    return BANYAN_OK;
}

/* Channels with one buffer and one list of ranks, in order, belong to one group. */
typedef struct group_count {
    uint64_t group;
    int rank;
    int zero; /* padding, set because the struct is hashed as bytes */
} group_count;

typedef struct groups {
    hash_map numbers;  /* buffer and ranks to the group's number */
    hash_map counts;   /* group_count to the rank's number of channels of the group */
    uint64_t **number; /* one per switch channel of each rank */
} groups;

static bool add_to_group(plan_checker *check, groups *all, int r, uint32_t i)
{
    const plan_switch *channel = &check->plan->ranks[r].switches[i];
    size_t count = (size_t)channel->rank_count, bytes = (count + 1) * sizeof(int);
    int *key = arena_take(&check->memory, bytes);
    if (!key)
        return false;
    key[0] = (int)channel->buffer;
    memcpy(key + 1, channel->ranks, count * sizeof(int));
    uint64_t number = all->numbers.count, before = 0;
    if (!map_get(&all->numbers, key, bytes, &number) && !map_put(&all->numbers, key, bytes, number))
        return false;
    group_count counted = {.group = number, .rank = r};
    map_get(&all->counts, &counted, sizeof counted, &before);
    all->number[r][i] = number;
    return map_put_copy(&all->counts, &check->memory, &counted, sizeof counted, before + 1);
}

static uint64_t count_in_group(const groups *all, uint64_t group, int rank)
{
    group_count key = {.group = group, .rank = rank};
    uint64_t count = 0;
    map_get(&all->counts, &key, sizeof key, &count);
    return count;
}

static banyan_status compare_members(plan_checker *check, const groups *all, int r, uint32_t i)
{
    const plan_switch *channel = &check->plan->ranks[r].switches[i];
    uint64_t own = count_in_group(all, all->number[r][i], r);
    for (int m = 0; m < channel->rank_count; m++) {
        int member = channel->ranks[m];
        uint64_t theirs = count_in_group(all, all->number[r][i], member);
        if (theirs == own)
            continue;
        json_path_key(&check->path, plan_channel_name(PLAN_SWITCH));
        json_path_index(&check->path, i);
        return json_path_fail(&check->path,
                              "is one of %llu channels of these ranks and %s that rank %d has, and "
                              "rank %d has %llu",
                              (unsigned long long)own, plan_buffer_word(channel->buffer), r, member,
                              (unsigned long long)theirs);
    }
    return BANYAN_OK;
}

/* Push the path of a rank's channels of one type. */
static size_t push_channels(plan_checker *check, int r)
{
    size_t mark = json_path_key(&check->path, "gpus");
    json_path_index(&check->path, (size_t)r);
    json_path_key(&check->path, "channels");
    return mark;
}

static banyan_status compare_groups(plan_checker *check, groups *all)
{
    const banyan_plan *plan = check->plan;
    all->number = arena_take(&check->memory, (size_t)plan->rank_count * sizeof *all->number);
    if (!all->number)
        return BANYAN_ERR_NO_MEMORY;
    for (int r = 0; r < plan->rank_count; r++) {
        uint32_t count = plan->ranks[r].channel_count[PLAN_SWITCH];
        all->number[r] = arena_take(&check->memory, count * sizeof **all->number);
        if (!all->number[r])
            return BANYAN_ERR_NO_MEMORY;
        for (uint32_t i = 0; i < count; i++) {
            if (!add_to_group(check, all, r, i))
                return BANYAN_ERR_NO_MEMORY;
        }
    }
    for (int r = 0; r < plan->rank_count; r++) {
        size_t mark = push_channels(check, r);
        for (uint32_t i = 0; i < plan->ranks[r].channel_count[PLAN_SWITCH]; i++)
            RETURN_IF_FAILED(compare_members(check, all, r, i));
        json_path_pop(&check->path, mark);
    }
    return BANYAN_OK;
}

static banyan_status check_each(plan_checker *check, uint64_t *seen)
{
    uint64_t number = 0;
    for (int r = 0; r < check->plan->rank_count; r++) {
        size_t mark = push_channels(check, r);
        RETURN_IF_FAILED(check_peers(check, r, PLAN_MEMORY));
        RETURN_IF_FAILED(check_peers(check, r, PLAN_PORT));
        RETURN_IF_FAILED(check_switches(check, r, seen, &number));
        json_path_pop(&check->path, mark);
    }
    return BANYAN_OK;
}

banyan_status check_channels(plan_checker *check)
{
    size_t ranks = (size_t)check->plan->rank_count;
    check->regions = arena_take(&check->memory, ranks * sizeof *check->regions);
    uint64_t *seen = arena_zeroed(&check->memory, ranks, sizeof *seen);
    if (!check->regions || !seen)
        return BANYAN_ERR_NO_MEMORY;
    RETURN_IF_FAILED(check_each(check, seen));
    RETURN_IF_FAILED(plan_pairs_make(check->plan, &check->pairs));
    groups all = {0};
    banyan_status status = compare_groups(check, &all);
    map_free(&all.numbers);
    map_free(&all.counts);
    return status;
}

void check_channels_free(plan_checker *check)
{
    plan_pairs_free(&check->pairs);
    arena_free(&check->memory);
}
