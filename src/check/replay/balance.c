/* Find signals and releases of a run that outnumber, or fall short of, the waits and acquires. */
#include <inttypes.h>

#include "check/replay/replay.h"

static uint64_t given_of(const replay_counter *at)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < at->givers.count; i++)
        sum += at->givers.data[i].per_run;
    return sum;
}

static uint64_t taken_of(const replay_counter *at)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < at->takers.count; i++)
        sum += at->takers.data[i].per_run;
    return sum;
}

void replay_mark_drifts(replay *all)
{
    for (uint32_t i = 0; i < all->stepper.counter_count; i++)
        all->counters[i].drifts = given_of(&all->counters[i]) > taken_of(&all->counters[i]);
}

static const struct {
    const char *name, *given, *taken, *gives;
} kinds[] = {
    [PLAN_NO_CHANNEL] = {"semaphore", "released", "acquired", "releases"},
    [PLAN_MEMORY] = {"memory channel", "signalled", "waited on", "signals"},
    [PLAN_PORT] = {"port channel", "signalled", "waited on", "signals"},
};

static finding_draft balance_draft(const replay *all, banyan_check_rule rule,
                                   const counter_user *user)
{
    const chain_owner *of = &all->chains.list[user->chain];
    return (finding_draft){.rule = rule,
                           .places = {{.rank = of->rank,
                                       .thread_block = (int)of->index,
                                       .operation = -1,
                                       .loop_operation = -1}},
                           .place_count = 1};
}

bool replay_report_dry(replay *all)
{
    bool added = true;
    for (uint32_t i = 0; i < all->stepper.counter_count && added; i++) {
        const replay_counter *at = &all->counters[i];
        const plan_counter *own = at->own;
        uint64_t given = given_of(at), taken = taken_of(at);
        if (given >= taken)
            continue;
        finding_draft draft = balance_draft(all, BANYAN_CHECK_DEADLOCK, at->takers.data);
        added = findings_add(
            all->findings, &draft,
            "rank %d's %s %u is %s %" PRIu64 " times a run, but %s only %" PRIu64
            " times, and begins at %" PRIu64 ": after %" PRIu64 " runs the rank waits forever",
            own->rank, kinds[own->type].name, own->number, kinds[own->type].taken, taken,
            kinds[own->type].given, given, own->initial, own->initial / (taken - given));
    }
    return added;
}

bool replay_warn_of_drifts(replay *all)
{
    bool added = true;
    for (uint32_t i = 0; i < all->stepper.counter_count && added; i++) {
        const replay_counter *at = &all->counters[i];
        const plan_counter *own = at->own;
        if (!at->drifts)
            continue;
        finding_draft draft = balance_draft(all, BANYAN_CHECK_IDLE_SYNC, at->givers.data);
        added =
            findings_add(all->findings, &draft,
                         "rank %d's %s %u is %s %" PRIu64 " times a run, but %s only %" PRIu64
                         " times, so waits there soon return too early; rank %d, thread "
                         "block %d %s it",
                         own->rank, kinds[own->type].name, own->number, kinds[own->type].given,
                         given_of(at), kinds[own->type].taken, taken_of(at), draft.places[0].rank,
                         draft.places[0].thread_block, kinds[own->type].gives);
    }
    return added;
}
