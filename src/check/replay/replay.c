#include "check/replay/replay.h"

#include <stdio.h>

/* Takes of an order that a message lists. */
#define TAKES_LISTED 4

static outcome replay_take_step(replay *all, walker *by)
{
    const plan_op *op = plan_position_op(by->pos);
    if (op->kind == PLAN_NOP)
        return walker_join(all, by) ? DONE : FAILED;
    bool syncs = op->kind == PLAN_BARRIER || op->kind == PLAN_FLUSH || plan_op_takes(op) > 0 ||
                 (plan_op_gives(op) > 0 && op->source_count == 0);
    return syncs ? replay_sync(all, by, op) : replay_data(all, by, op);
}

static uint64_t memory_of(const replay *all)
{
    return all->store.bytes + all->memory.bytes + all->values.memory.bytes +
           cells_memory(&all->cells) + all->instances.capacity * sizeof *all->instances.data +
           all->parts.capacity * sizeof *all->parts.data +
           all->origins.capacity * sizeof *all->origins.data + map_memory(&all->values.by_content);
}

/* Advance the block as far as possible; `moved` is whether it made progress. */
static outcome replay_advance(replay *all, walker *by, bool *moved)
{
    while (plan_position_settle(&all->stepper, by->pos)) {
        outcome result = replay_take_step(all, by);
        if (result != DONE)
            return result;
        if (memory_of(all) > all->max_memory_bytes) {
            error_set(BANYAN_ERR_NO_MEMORY,
                      "checking plan %s takes more than the %llu bytes that it may",
                      all->plan->name, (unsigned long long)all->max_memory_bytes);
            return FAILED;
        }
        by->instance = NOBODY;
        plan_position_next(by->pos);
        all->steps++;
        *moved = true;
    }
    return DONE;
}

static bool has_ended(const replay *all, int r)
{
    const rank_state *rank = &all->ranks[r];
    for (uint32_t b = 0; b < all->plan->ranks[r].block_count; b++) {
        if (!plan_position_ended(rank->walkers[b].pos))
            return false;
    }
    return true;
}

/* Advance one rank as far as possible in runs up to `last`. */
static outcome advance_rank(replay *all, int r, uint32_t last, bool *moved)
{
    rank_state *rank = &all->ranks[r];
    while (rank->run <= last) {
        if (!rank->running) {
            if (!replay_begin_run(all, r))
                return FAILED;
            *moved = true;
        }
        for (uint32_t b = 0; b < all->plan->ranks[r].block_count; b++) {
            if (replay_advance(all, &rank->walkers[b], moved) == FAILED)
                return FAILED;
        }
        if (!has_ended(all, r))
            return WAITS;
        if (!replay_end_run(all, r))
            return FAILED;
        *moved = true;
    }
    return DONE;
}

/* Advance all ranks in runs up to `last`; `waits` is whether any rank is still in one of them. */
static banyan_status advance_all(replay *all, uint32_t last, bool *waits)
{
    bool moved = true;
    while (moved) {
        moved = *waits = false;
        for (int r = 0; r < all->plan->rank_count; r++) {
            outcome result = advance_rank(all, r, last, &moved);
            *waits |= result == WAITS;
            if (result == FAILED)
                return BANYAN_ERR_NO_MEMORY;
        }
    }
    return BANYAN_OK;
}

/* Replay a prepared plan in one order. */
static banyan_status replay_play(replay *all)
{
    bool waits = false;
    for (uint32_t last = 0; last < all->runs; last++)
        RETURN_IF_FAILED(advance_all(all, last, &waits));
    all->stuck = waits;
    bool reported = waits ? replay_explain_stuck(all) : replay_report_dry(all);
    return reported ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
}

/* List the takes that had to come first, up to a limit. */
static void describe_path(const replay *all, const orders *found, char *text, size_t bytes)
{
    size_t listed = 0, used = 0;
    text[0] = 0;
    for (size_t i = 0; i < found->path.count && listed < TAKES_LISTED; i++) {
        const order_take *one = &found->path.data[i];
        char place[PLACE_TEXT_BYTES];
        if (!one->chosen)
            continue;
        uint32_t number = all->net.lanes[one->lane].events.data[one->event].instance;
        int more = snprintf(text + used, bytes - used, "%s%s in run %u",
                            listed++ == 0 ? "; this happens when " : " and then ",
                            replay_place_text(all, number, place), all->instances.data[number].run);
        used += more > 0 && (size_t)more < bytes - used ? (size_t)more : 0;
    }
    if (listed > 0)
        snprintf(text + used, bytes - used, " get%s ahead of the others", listed == 1 ? "s" : "");
}

static bool report_undecided(const replay *all, findings *into)
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
    return findings_add(
        into, &draft,
        "thread blocks share %zu channels or semaphores, as %s does, and can take "
        "from them in more orders than could be tried: deadlock is excluded for some "
        "of these orders only, and the order of accesses is known only while no rank "
        "is a run ahead",
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
        describe_path(first, found, how, how_bytes);
    return found->decided || report_undecided(first, asked->findings) ? BANYAN_OK
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
    char how[(TAKES_LISTED + 1) * PLACE_TEXT_BYTES] = "";
    RETURN_IF_FAILED(replay_prepare(all));
    if (!replay_keeps_net(all))
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
