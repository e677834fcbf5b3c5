/* Find signals and releases of a run that outnumber, or fall short of, the waits and acquires. */
#include "check/replay/replay.h"

typedef bool (*counter_visit)(replay *all, int rank, counter *at, const char *what,
                              uint32_t number);

static bool visit_list(replay *all, int rank, counter *list, uint32_t count, const char *what,
                       counter_visit visit)
{
    for (uint32_t i = 0; i < count; i++) {
        if (!visit(all, rank, &list[i], what, i))
            return false;
    }
    return true;
}

static bool balance_visit_all(replay *all, counter_visit visit)
{
    for (int r = 0; r < all->plan->rank_count; r++) {
        const plan_rank *of = &all->plan->ranks[r];
        rank_state *rank = &all->ranks[r];
        if (!visit_list(all, r, rank->channels[PLAN_MEMORY], of->channel_count[PLAN_MEMORY],
                        "memory channel", visit) ||
            !visit_list(all, r, rank->channels[PLAN_PORT], of->channel_count[PLAN_PORT],
                        "port channel", visit) ||
            !visit_list(all, r, rank->semaphores, of->semaphore_count, "semaphore", visit))
            return false;
    }
    return true;
}

static uint64_t given_of(const counter *at)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < at->givers.count; i++)
        sum += at->givers.data[i].per_run;
    return sum;
}

static uint64_t taken_of(const counter *at)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < at->takers.count; i++)
        sum += at->takers.data[i].per_run;
    return sum;
}

static bool balance_mark(replay *all, int rank, counter *at, const char *what, uint32_t number)
{
    (void)all, (void)rank, (void)what, (void)number;
    at->drifts = given_of(at) > taken_of(at);
    return true;
}

void replay_mark_drifts(replay *all)
{
    balance_visit_all(all, balance_mark);
}

static bool balance_tell(replay *all, int rank, counter *at, const char *what, uint32_t number)
{
    uint64_t given = given_of(at), taken = taken_of(at);
    if (given >= taken)
        return true;
    const chain_owner *taker = &all->chains.list[at->takers.data[0].chain];
    finding_draft draft = {.rule = BANYAN_CHECK_DEADLOCK,
                           .places = {{.rank = taker->rank,
                                       .thread_block = (int)taker->index,
                                       .operation = -1,
                                       .loop_operation = -1}},
                           .place_count = 1};
    return findings_add(all->findings, &draft,
                        "rank %d takes %llu times a run from %s %u, which is given to %llu times "
                        "and holds %llu at first: after %llu runs it waits forever",
                        rank, (unsigned long long)taken, what, number, (unsigned long long)given,
                        (unsigned long long)at->initial,
                        (unsigned long long)(at->initial / (taken - given)));
}

static bool balance_warn(replay *all, int rank, counter *at, const char *what, uint32_t number)
{
    if (!at->drifts)
        return true;
    const chain_owner *giver = &all->chains.list[at->givers.data[0].chain];
    finding_draft draft = {.rule = BANYAN_CHECK_IDLE_SYNC,
                           .places = {{.rank = giver->rank,
                                       .thread_block = (int)giver->index,
                                       .operation = -1,
                                       .loop_operation = -1}},
                           .place_count = 1};
    return findings_add(all->findings, &draft,
                        "rank %d, thread block %u gives to rank %d's %s %u, which gets %llu a run "
                        "of which %llu are taken: waits there soon end too early",
                        giver->rank, giver->index, rank, what, number,
                        (unsigned long long)given_of(at), (unsigned long long)taken_of(at));
}

bool replay_warn_of_drifts(replay *all)
{
    return balance_visit_all(all, balance_warn);
}

bool replay_tell_dry(replay *all)
{
    return balance_visit_all(all, balance_tell);
}
