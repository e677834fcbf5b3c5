/* Channels that the passes add. */
#include "plan/executor/mscclpp.h"

bool mscclpp_owns_channel(const plan_rank *rank, const plan_thread_block *own,
                          plan_channel_type type, uint32_t channel)
{
    for (uint32_t b = 0; b < rank->block_count; b++) {
        const plan_thread_block *block = &rank->blocks[b];
        for (uint32_t i = 0; block != own && i < block->channel_count[type]; i++) {
            if (block->channels[type][i] == channel)
                return false;
        }
    }
    return true;
}

uint32_t mscclpp_count_channels(const plan_rank *rank, plan_channel_type type, int peer)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < rank->channel_count[type]; i++)
        count += rank->peers[type][i] == peer;
    return count;
}

static bool channels_append(banyan_plan *plan, int rank, plan_channel_type type, int peer)
{
    plan_rank *own = &plan->ranks[rank];
    uint32_t count = own->channel_count[type];
    int *peers = plan_take(plan, count + 1, sizeof *peers);
    if (!peers)
        return false;
    for (uint32_t i = 0; i < count; i++)
        peers[i] = own->peers[type][i];
    peers[count] = peer;
    own->peers[type] = peers;
    own->channel_count[type] = count + 1;
    return true;
}

bool mscclpp_add_pair(banyan_plan *plan, plan_channel_type type, int a, int b, uint32_t *of_a,
                      uint32_t *of_b)
{
    uint32_t from_a = mscclpp_count_channels(&plan->ranks[a], type, b);
    uint32_t from_b = mscclpp_count_channels(&plan->ranks[b], type, a);
    uint32_t wanted = (from_a > from_b ? from_a : from_b) + 1;
    for (; from_a < wanted; from_a++) {
        if (!channels_append(plan, a, type, b))
            return false;
    }
    for (; from_b < wanted; from_b++) {
        if (!channels_append(plan, b, type, a))
            return false;
    }
    *of_a = plan->ranks[a].channel_count[type] - 1;
    *of_b = plan->ranks[b].channel_count[type] - 1;
    return true;
}
