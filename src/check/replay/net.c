/* Record waits and gives while the plan is replayed, and replay it again once the possible orders
 * of takes from shared counters are known. */
#include <stdio.h>
#include <string.h>

#include "check/replay/replay.h"

/* Takes of an order that a message lists. */
#define TAKES_TOLD 4

static bool keeps_net(const replay *all)
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

/* ---- recording ---- */

static bool add_event(replay *all, walker *by, uint32_t gives, uint32_t takes)
{
    return walker_begin(all, by) &&
           order_net_add(&all->net, lane_of(all, by), by->instance, gives, takes);
}

/* A run begins when all thread blocks of the one before have ended. */
bool replay_note_run(replay *all, int rank)
{
    if (!keeps_net(all))
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

bool replay_note_give(replay *all, walker *by, const counter *to, order_need *at)
{
    if (!keeps_net(all))
        return true;
    *at = replay_net_place(all, by);
    return add_event(all, by, to->shared, ORDER_NONE);
}

bool replay_note_take(replay *all, walker *by, const counter *from, const token *one)
{
    if (!keeps_net(all))
        return true;
    if (from->shared == NOBODY && one &&
        !order_net_need(&all->net, lane_of(all, by),
                        (order_need){one->given.lane, one->given.at + 1}))
        return false;
    return add_event(all, by, ORDER_NONE, from->shared);
}

bool replay_note_arrival(replay *all, walker *by, meeting *at)
{
    if (!keeps_net(all))
        return true;
    order_need here = replay_net_place(all, by);
    here.at++;
    return array_push(&at->arrivals, here) && add_event(all, by, ORDER_NONE, ORDER_NONE);
}

void replay_note_round(meeting *at)
{
    meeting before = *at;
    at->over = before.arrivals;
    at->arrivals = before.over;
    at->arrivals.count = 0;
}

bool replay_note_barrier(replay *all, walker *by, const meeting *at)
{
    for (size_t i = 0; i < at->over.count; i++) {
        if (!order_net_need(&all->net, lane_of(all, by), at->over.data[i]))
            return false;
    }
    return !keeps_net(all) || add_event(all, by, ORDER_NONE, ORDER_NONE);
}

bool replay_note_packets(replay *all, walker *by, uint32_t writer)
{
    if (!keeps_net(all) || writer >= all->event_of.count || all->event_of.data[writer].at == 0)
        return true;
    return order_net_need(&all->net, lane_of(all, by), all->event_of.data[writer]);
}

bool replay_note_data(replay *all, walker *by)
{
    const plan_op *loop, *op = walker_op(by, &loop);
    bool reads = plan_op_reads_packets(op->kind), writes = plan_op_writes_packets(op->kind);
    if (!keeps_net(all) || (!reads && !writes))
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

/* ---- every order ---- */

/* List the takes that had to come first, up to a limit. */
static void tell_path(const replay *all, const orders *found, char *text, size_t bytes)
{
    size_t told = 0, used = 0;
    text[0] = 0;
    for (size_t i = 0; i < found->path.count && told < TAKES_TOLD; i++) {
        const order_take *one = &found->path.data[i];
        char place[PLACE_TEXT_BYTES];
        if (!one->chosen)
            continue;
        uint32_t number = all->net.lanes[one->lane].events.data[one->event].instance;
        int more = snprintf(text + used, bytes - used, "%s%s in run %u",
                            told++ == 0 ? "; it comes to that when " : " and then ",
                            replay_place_text(all, number, place), all->instances.data[number].run);
        used += more > 0 && (size_t)more < bytes - used ? (size_t)more : 0;
    }
    if (told > 0)
        snprintf(text + used, bytes - used, " get%s ahead of the others", told == 1 ? "s" : "");
}

static bool tell_undecided(const replay *all, findings *into)
{
    const order_event *event = NULL;
    for (uint32_t lane = 0; !event && lane < all->net.lane_count; lane++) {
        for (uint32_t i = 0; !event && i < order_net_next(&all->net, lane); i++) {
            const order_event *one = &all->net.lanes[lane].events.data[i];
            event = one->takes != ORDER_NONE ? one : NULL;
        }
    }
    finding_draft draft = {.rule = BANYAN_CHECK_UNDECIDED, .place_count = 1};
    char place[PLACE_TEXT_BYTES];
    if (!event)
        return true;
    draft.places[0] = replay_place(all, event->instance);
    return findings_add(into, &draft,
                        "thread blocks share %zu channels or semaphores, as %s does, and can take "
                        "from them in more orders than could be tried: that there is no deadlock "
                        "is known of some orders only, and what they order is known as long as no "
                        "rank is a run ahead",
                        all->shared.count, replay_place_text(all, event->instance, place));
}

/* Replay in one order, without reports, to record the net. */
static banyan_status try_orders(const replay *asked, replay *first, orders *found, bool *stuck,
                                char *how, size_t how_bytes)
{
    findings none = {0};
    first->findings = &none;
    banyan_status status = replay_play(first);
    *stuck = first->stuck;
    if (status != BANYAN_OK || first->stuck)
        return status;
    if (!orders_try(&first->net, found))
        return BANYAN_ERR_NO_MEMORY;
    if (found->stuck)
        tell_path(first, found, how, how_bytes);
    return found->decided || tell_undecided(first, asked->findings) ? BANYAN_OK
                                                                    : BANYAN_ERR_NO_MEMORY;
}

/* Replay again, with the results of the search. */
static banyan_status replay_again(replay *all, const orders *found, const char *how)
{
    if (found->stuck) {
        all->forced = &found->path;
        all->how = how;
        all->findings->deadlocks_only = true;
    } else if (found->decided) {
        all->orders = found;
    }
    banyan_status status = replay_prepare(all);
    if (status == BANYAN_OK)
        status = replay_play(all);
    all->findings->deadlocks_only = false;
    all->forced = NULL;
    all->orders = NULL;
    all->how = NULL;
    return status;
}

banyan_status replay_plan(replay *all)
{
    replay asked = *all;
    char how[(TAKES_TOLD + 1) * PLACE_TEXT_BYTES] = "";
    RETURN_IF_FAILED(replay_prepare(all));
    if (!keeps_net(all))
        return replay_play(all);
    orders found = {0};
    bool stuck = false;
    banyan_status status = try_orders(&asked, all, &found, &stuck, how, sizeof how);
    if (status == BANYAN_OK) {
        asked.steps = all->steps + found.looks;
        replay_free(all);
        *all = asked;
        status = replay_again(all, &found, how);
    }
    orders_free(&found);
    return status;
}
