/* Thread blocks that wait for tokens, barriers and packets. */
#include "simulate/engine/engine.h"

void waiters_add(sim_engine *all, waiters *list, uint32_t lane)
{
    all->blocks[lane].next_waiter = NO_LANE;
    if (list->first == NO_LANE)
        list->first = lane;
    else
        all->blocks[list->last].next_waiter = lane;
    list->last = lane;
}

void waiters_wake(sim_engine *all, waiters *list)
{
    for (uint32_t lane = list->first; lane != NO_LANE; lane = all->blocks[lane].next_waiter)
        agenda_set(&all->agenda, lane, all->now_ps);
    list->first = list->last = NO_LANE;
}

void readers_wake(void *context, int rank)
{
    sim_engine *all = context;
    waiters_wake(all, &all->ranks[rank].for_packets);
}

banyan_status sim_give(sim_engine *all, uint32_t counter, plan_event when)
{
    waiters *list = &all->token_waiters[counter];
    if (!plan_counter_give(&all->stepper.counters[counter], when))
        return BANYAN_ERR_NO_MEMORY;
    if (list->first != NO_LANE) {
        agenda_set(&all->agenda, list->first, all->now_ps);
        list->first = all->blocks[list->first].next_waiter;
    }
    return BANYAN_OK;
}

banyan_status signal_peer(sim_engine *all, int rank, plan_channel_type type, uint32_t channel,
                          plan_event when)
{
    uint64_t latency_ps;
    uint32_t to = all->stepper.peers[plan_stepper_channel(&all->stepper, rank, type, channel)];
    if (to == PLAN_NONE)
        return error_set(BANYAN_ERR_INVALID, "rank %d's %s channel %u has no other end", rank,
                         plan_channel_name(type), channel);
    int peer = all->plan->ranks[rank].peers[type][channel];
    RETURN_IF_FAILED(sim_latency(all, rank, peer, &latency_ps));
    when.when += latency_ps;
    return sim_give(all, to, when);
}
