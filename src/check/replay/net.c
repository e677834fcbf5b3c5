/* Record waits and gives while the plan is replayed. */
#include "check/replay/replay.h"

bool replay_keeps_net(const replay *all)
{
    return all->shared.count > 0;
}

static uint32_t lane_of(const replay *all, const walker *by)
{
    return (uint32_t)(by - all->walkers);
}

order_need replay_net_place(const replay *all, const walker *by)
{
    uint32_t lane = lane_of(all, by);
    return (order_need){lane, order_net_next(&all->net, lane)};
}

static bool add_event(replay *all, walker *by, uint32_t gives, uint32_t takes)
{
    return walker_begin(all, by) &&
           order_net_add(&all->net, lane_of(all, by), by->instance, gives, takes);
}

/* A run begins when all thread blocks of the one before have ended. */
bool replay_note_run(replay *all, int rank)
{
    if (!replay_keeps_net(all))
        return true;
    uint32_t count = all->plan->ranks[rank].block_count;
    walker *walkers = all->ranks[rank].walkers;
    for (uint32_t b = 0; b < count; b++) {
        for (uint32_t other = 0; other < count; other++) {
            /* Blocks that ended before have one more event by now. */
            order_need end = replay_net_place(all, &walkers[other]);
            end.at -= other < b;
            if (!order_net_need(&all->net, lane_of(all, &walkers[b]), end))
                return false;
        }
        if (!order_net_add(&all->net, lane_of(all, &walkers[b]), ORDER_NONE, ORDER_NONE,
                           ORDER_NONE))
            return false;
    }
    return true;
}

bool replay_note_give(replay *all, walker *by, const replay_counter *to, order_need *at)
{
    if (!replay_keeps_net(all))
        return true;
    *at = replay_net_place(all, by);
    return add_event(all, by, to->shared, ORDER_NONE);
}

bool replay_note_take(replay *all, walker *by, const replay_counter *from, const token *one)
{
    if (!replay_keeps_net(all))
        return true;
    if (from->shared == NOBODY && one &&
        !order_net_need(&all->net, lane_of(all, by),
                        (order_need){one->given.lane, one->given.at + 1}))
        return false;
    return add_event(all, by, ORDER_NONE, from->shared);
}

bool replay_note_arrival(replay *all, walker *by, barrier_clocks *at)
{
    if (!replay_keeps_net(all))
        return true;
    order_need here = replay_net_place(all, by);
    here.at++;
    return array_push(&at->arrivals, here) && add_event(all, by, ORDER_NONE, ORDER_NONE);
}

void replay_note_round(barrier_clocks *at)
{
    barrier_clocks before = *at;
    at->over = before.arrivals;
    at->arrivals = before.over;
    at->arrivals.count = 0;
}

bool replay_note_barrier(replay *all, walker *by, const barrier_clocks *at)
{
    for (size_t i = 0; i < at->over.count; i++) {
        if (!order_net_need(&all->net, lane_of(all, by), at->over.data[i]))
            return false;
    }
    return !replay_keeps_net(all) || add_event(all, by, ORDER_NONE, ORDER_NONE);
}

bool replay_note_packets(replay *all, walker *by, uint32_t writer)
{
    if (!replay_keeps_net(all) || writer >= all->event_of.count ||
        all->event_of.data[writer].at == 0)
        return true;
    return order_net_need(&all->net, lane_of(all, by), all->event_of.data[writer]);
}

bool replay_note_data(replay *all, walker *by)
{
    const plan_op *op = plan_position_op(by->pos);
    bool reads = plan_op_reads_packets(op->kind), writes = plan_op_writes_packets(op->kind);
    if (!replay_keeps_net(all) || (!reads && !writes))
        return true;
    if (!add_event(all, by, ORDER_NONE, ORDER_NONE))
        return false;
    while (all->event_of.count <= by->instance) {
        if (!array_push(&all->event_of, (order_need){0, 0}))
            return false;
    }
    all->event_of.data[by->instance] = replay_net_place(all, by);
    return true;
}
