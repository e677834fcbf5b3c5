#include "simulate/engine/engine.h"

void waiters_add(engine *all, waiters *list, uint32_t lane)
{
    all->blocks[lane].next_waiter = NO_LANE;
    if (list->first == NO_LANE)
        list->first = lane;
    else
        all->blocks[list->last].next_waiter = lane;
    list->last = lane;
}

void waiters_wake(engine *all, waiters *list)
{
    for (uint32_t lane = list->first; lane != NO_LANE; lane = all->blocks[lane].next_waiter)
        agenda_set(&all->agenda, lane, all->now_ps);
    list->first = list->last = NO_LANE;
}

bool tokens_add(engine *all, tokens *to, happening what)
{
    if (to->taken == to->come.count)
        to->taken = to->come.count = 0;
    if (!array_push(&to->come, what))
        return false;
    uint32_t lane = to->waiting.first;
    if (lane == NO_LANE)
        return true;
    to->waiting.first = all->blocks[lane].next_waiter;
    agenda_set(&all->agenda, lane, all->now_ps);
    return true;
}

bool tokens_take(engine *all, tokens *from, uint32_t lane, happening *what)
{
    if (from->initial > 0) {
        from->initial--;
        *what = (happening){0, NO_STEP};
        return true;
    }
    if (from->taken == from->come.count) {
        waiters_add(all, &from->waiting, lane);
        return false;
    }
    *what = from->come.data[from->taken++];
    return true;
}

banyan_status signal_peer(engine *all, int rank, plan_channel_type type, uint32_t channel,
                          happening what)
{
    int peer;
    uint32_t back;
    uint64_t latency_ps;
    if (!plan_pairs_find(&all->pairs, rank, type, channel, &peer, &back))
        return error_set(BANYAN_ERR_INVALID, "rank %d's %s channel %u has no other end", rank,
                         plan_channel_name(type), channel);
    RETURN_IF_FAILED(engine_latency(all, rank, peer, &latency_ps));
    what.time_ps += latency_ps;
    return tokens_add(all, &all->ranks[peer].signals[type][back], what) ? BANYAN_OK
                                                                        : BANYAN_ERR_NO_MEMORY;
}

void readers_wake(void *context, int rank)
{
    engine *all = context;
    waiters_wake(all, &all->ranks[rank].for_packets);
}

static meeting *tokens_find_meeting(engine *all, int rank, const plan_op *op)
{
    size_t place;
    meeting begun = {.waiting = {NO_LANE, NO_LANE}};
    if (!plan_barrier_numbers_find(&all->meetings, rank, op, &place))
        return NULL;
    if (place == all->meeting_list.count && !array_push(&all->meeting_list, begun))
        return NULL;
    return &all->meeting_list.data[place];
}

banyan_status meeting_attend(engine *all, uint32_t lane, const plan_op *op, bool *over)
{
    sim_block *block = &all->blocks[lane];
    meeting *at = tokens_find_meeting(all, block->rank, op);
    if (!at)
        return BANYAN_ERR_NO_MEMORY;
    if (!block->arrived) {
        block->arrived = true;
        block->rounds = at->rounds;
        if (++at->arrived == op->barrier_members) {
            at->rounds++;
            at->arrived = 0;
            at->last = (happening){all->now_ps, block->doing.after};
            waiters_wake(all, &at->waiting);
        }
    }
    *over = at->rounds != block->rounds;
    if (!*over) {
        waiters_add(all, &at->waiting, lane);
        return BANYAN_OK;
    }
    block->arrived = false;
    block->awaited = at->last;
    return BANYAN_OK;
}
