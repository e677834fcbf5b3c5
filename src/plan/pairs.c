#include "plan/pairs.h"

#include <stdlib.h>

static int plan_pairs_compare(const void *a, const void *b, void *context)
{
    const int *peers = context;
    uint32_t first = *(const uint32_t *)a, second = *(const uint32_t *)b;
    if (peers[first] != peers[second])
        return peers[first] < peers[second] ? -1 : 1;
    return (first > second) - (first < second);
}

static bool make_ends(plan_pairs *pairs, int r, plan_channel_type type)
{
    const plan_rank *rank = &pairs->plan->ranks[r];
    plan_ends *ends = &pairs->ends[r][type];
    uint32_t count = rank->channel_count[type];
    int *peers = rank->peers[type];
    ends->by_peer = arena_take(&pairs->memory, count * sizeof *ends->by_peer);
    ends->ordinal = arena_take(&pairs->memory, count * sizeof *ends->ordinal);
    if (!ends->by_peer || !ends->ordinal)
        return false;
    for (uint32_t i = 0; i < count; i++)
        ends->by_peer[i] = i;
    if (count > 1)
        qsort_r(ends->by_peer, count, sizeof *ends->by_peer, plan_pairs_compare, peers);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t channel = ends->by_peer[i];
        bool same = i > 0 && peers[ends->by_peer[i - 1]] == peers[channel];
        ends->ordinal[channel] = same ? ends->ordinal[ends->by_peer[i - 1]] + 1 : 0;
    }
    return true;
}

banyan_status plan_pairs_make(const banyan_plan *plan, plan_pairs *pairs)
{
    plan_pairs made = {.plan = plan};
    bool taken = true;
    made.ends = arena_take(&made.memory, (size_t)plan->rank_count * sizeof *made.ends);
    taken = made.ends;
    for (int r = 0; r < plan->rank_count && taken; r++)
        taken = make_ends(&made, r, PLAN_MEMORY) && make_ends(&made, r, PLAN_PORT);
    if (!taken) {
        arena_free(&made.memory);
        return BANYAN_ERR_NO_MEMORY;
    }
    *pairs = made;
    return BANYAN_OK;
}

void plan_pairs_free(plan_pairs *pairs)
{
    arena_free(&pairs->memory);
    pairs->ends = NULL;
}

/* Return the index of the first channel to `peer` in the order by peer. */
static uint32_t first_towards(const plan_ends *ends, const int *peers, uint32_t count, int peer)
{
    uint32_t low = 0, high = count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (peers[ends->by_peer[middle]] < peer)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

bool plan_pairs_find(const plan_pairs *pairs, int rank, plan_channel_type type, uint32_t channel,
                     int *peer, uint32_t *peer_channel)
{
    int other = pairs->plan->ranks[rank].peers[type][channel];
    const plan_rank *theirs = &pairs->plan->ranks[other];
    const plan_ends *ends = &pairs->ends[other][type];
    uint32_t count = theirs->channel_count[type];
    uint32_t at = first_towards(ends, theirs->peers[type], count, rank);
    uint32_t ordinal = pairs->ends[rank][type].ordinal[channel];
    if (ordinal >= count - at || theirs->peers[type][ends->by_peer[at + ordinal]] != rank)
        return false;
    *peer = other;
    *peer_channel = ends->by_peer[at + ordinal];
    return true;
}
