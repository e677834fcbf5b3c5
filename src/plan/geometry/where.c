#include "plan/plan.h"

plan_where plan_operand_where(const banyan_plan *plan, int rank, const plan_thread_block *block,
                              const plan_op *op, const plan_operand *operand)
{
    const plan_rank *own = &plan->ranks[rank];
    if (operand->place == PLAN_REMOTE) {
        uint32_t id = block->remote_buffers[op->channel_type][operand->reference];
        return (plan_where){own->remote_buffers[id].rank, own->remote_buffers[id].buffer};
    }
    if (operand->place == PLAN_GROUP) {
        const plan_switch *group = &own->switches[block->channels[PLAN_SWITCH][operand->reference]];
        return (plan_where){group->ranks[0], group->buffer};
    }
    return (plan_where){rank, operand->buffer};
}

int plan_operand_ranks(const banyan_plan *plan, int rank, const plan_thread_block *block,
                       const plan_op *op, const plan_operand *operand, const int **ranks, int *room)
{
    if (operand->place != PLAN_GROUP) {
        *room = plan_operand_where(plan, rank, block, op, operand).rank;
        *ranks = room;
        return 1;
    }
    uint32_t channel = block->channels[PLAN_SWITCH][operand->reference];
    const plan_switch *group = &plan->ranks[rank].switches[channel];
    *ranks = group->ranks;
    return group->rank_count;
}

bool plan_channel_pair(const banyan_plan *plan, int rank, plan_channel_type type, uint32_t channel,
                       int *peer, uint32_t *peer_channel)
{
    const plan_rank *own = &plan->ranks[rank];
    int other = own->peers[type][channel];
    const plan_rank *theirs = &plan->ranks[other];
    uint32_t before = 0;
    for (uint32_t i = 0; i < channel; i++)
        before += own->peers[type][i] == other;
    for (uint32_t i = 0; i < theirs->channel_count[type]; i++) {
        if (theirs->peers[type][i] != rank)
            continue;
        if (before == 0) {
            *peer = other;
            *peer_channel = i;
            return true;
        }
        before--;
    }
    return false;
}
