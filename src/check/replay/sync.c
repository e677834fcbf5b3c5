/* Replay signals and waits, semaphores, and barriers. */
#include "check/replay/replay.h"

static counter_user *sync_user_of(counter_user *users, size_t count, uint32_t chain)
{
    for (size_t i = 0; i < count; i++) {
        if (users[i].chain == chain)
            return &users[i];
    }
    return NULL;
}

/* Give a token, which takes over `released`. */
static outcome sync_give(replay *all, walker *by, replay_counter *to, vector_clock *released)
{
    counter_user *giver = sync_user_of(to->givers.data, to->givers.count, by->chain);
    token new = {.known = released, .chain = by->chain, .ordinal = ++giver->so_far};
    if (replay_note_give(all, by, to, &new.given) && array_push(&to->tokens, new))
        return DONE;
    vector_clock_drop(&all->store, released);
    return FAILED;
}

/* When not all orders could be searched: at least `least` other tokens are taken before this one,
 * so a token without which there are fewer must have been given before. */
static bool is_needed(const replay_counter *at, const token *one, uint32_t run, uint64_t least)
{
    uint64_t without = one->ordinal - 1 + at->own->initial;
    for (size_t i = 0; i < at->givers.count; i++) {
        if (at->givers.data[i].chain != one->chain)
            without += at->givers.data[i].per_run * (run + 1);
    }
    return without < least;
}

static outcome sync_acquire(replay *all, walker *by, const token *one, bool relaxed)
{
    if (!relaxed)
        return vector_clock_add(&all->store, &by->pending, one->known) ? DONE : FAILED;
    int rank = all->chains.list[one->chain].rank;
    vector_clock *less = vector_clock_relax(&all->store, one->known, rank);
    bool acquired = less && vector_clock_add(&all->store, &by->pending, less);
    vector_clock_drop(&all->store, less);
    return acquired ? DONE : FAILED;
}

/* One giver and one taker: the k-th take matches the k-th give. */
static outcome acquire_in_order(replay *all, walker *by, replay_counter *at, token *one,
                                bool relaxed)
{
    if (!one || at->drifts)
        return DONE;
    outcome result = sync_acquire(all, by, one, relaxed);
    vector_clock_drop(&all->store, one->known);
    one->known = NULL;
    return result;
}

static outcome acquire_certain(replay *all, walker *by, replay_counter *at, bool relaxed)
{
    if (at->drifts)
        return DONE;
    order_need here = replay_net_place(all, by);
    uint32_t run = all->ranks[by->pos->rank].run;
    uint64_t least = 0;
    for (size_t i = 0; i < at->takers.count; i++)
        least += at->takers.data[i].chain == by->chain ? at->takers.data[i].so_far
                                                       : at->takers.data[i].per_run * run;
    for (size_t i = 0; i < at->tokens.count; i++) {
        const token *one = &at->tokens.data[i];
        bool certain = all->orders ? orders_follow(all->orders, one->given, here)
                                   : is_needed(at, one, run, least);
        if (certain && sync_acquire(all, by, one, relaxed) == FAILED)
            return FAILED;
    }
    return DONE;
}

/* True if the block may take next in the given order. */
static bool is_next(const replay *all, const walker *by, const replay_counter *at)
{
    uint64_t before = 0;
    for (size_t i = 0; all->forced && i < all->forced->count; i++) {
        const order_take *one = &all->forced->data[i];
        if (one->counter == at->shared && before++ == at->own->taken)
            return &all->walkers[one->lane] == by;
    }
    return !all->forced;
}

static outcome sync_take(replay *all, walker *by, replay_counter *at, bool relaxed)
{
    bool shared = at->shared != NOBODY;
    if (at->own->taken >= at->own->initial && at->own->taken - at->own->initial >= at->tokens.count)
        return WAITS;
    if (shared && !is_next(all, by, at))
        return WAITS;
    at->own->taken++;
    counter_user *taker = sync_user_of(at->takers.data, at->takers.count, by->chain);
    taker->so_far++;
    token *one = at->own->taken > at->own->initial
                     ? &at->tokens.data[at->own->taken - at->own->initial - 1]
                     : NULL;
    outcome acquired = shared ? acquire_certain(all, by, at, relaxed)
                              : acquire_in_order(all, by, at, one, relaxed);
    return acquired == DONE && replay_note_take(all, by, at, one) ? DONE : FAILED;
}

static outcome sync_take_all(replay *all, walker *by, const plan_op *op)
{
    for (; by->pos->taken < plan_op_takes(op); by->pos->taken++) {
        uint32_t from = plan_stepper_taken(&all->stepper, by->pos, op, by->pos->taken);
        outcome result = sync_take(all, by, &all->counters[from], op->kind == PLAN_RELAXED_WAIT);
        if (result != DONE)
            return result;
    }
    return DONE;
}

/* A port channel's signal shows that all its earlier requests are done. */
static outcome give_by_port(replay *all, walker *by, const plan_op *op, uint32_t k,
                            vector_clock **released)
{
    uint32_t channel = plan_channel_of(by->pos->block, op, op->channels[k]);
    uint32_t time = all->ranks[by->pos->rank].port_times[channel]++;
    uint32_t chain = all->chains.callers[by->pos->rank] + 1 +
                     all->plan->ranks[by->pos->rank].block_count + channel;
    return vector_clock_add_one(&all->store, released, (vector_clock_entry){chain, time, time})
               ? DONE
               : FAILED;
}

outcome replay_signal(replay *all, walker *by, const plan_op *op, uint32_t k, bool relaxed)
{
    uint32_t to = plan_stepper_given(&all->stepper, by->pos, op, k);
    vector_clock *released;
    if (to == PLAN_NONE)
        return DONE;
    if (!walker_release(all, by, relaxed, &released))
        return FAILED;
    vector_clock_keep(released);
    if (op->channel_type == PLAN_PORT && give_by_port(all, by, op, k, &released) == FAILED) {
        vector_clock_drop(&all->store, released);
        return FAILED;
    }
    return sync_give(all, by, &all->counters[to], released);
}

static outcome sync_signal_all(replay *all, walker *by, const plan_op *op)
{
    for (uint32_t k = 0; k < op->channel_count; k++) {
        if (replay_signal(all, by, op, k, op->kind == PLAN_RELAXED_SIGNAL) == FAILED)
            return FAILED;
    }
    return DONE;
}

static outcome sync_release_all(replay *all, walker *by, const plan_op *op)
{
    vector_clock *released;
    for (uint32_t k = 0; k < op->semaphore_count; k++) {
        uint32_t to = plan_stepper_given(&all->stepper, by->pos, op, k);
        if (!walker_release(all, by, false, &released) ||
            sync_give(all, by, &all->counters[to], vector_clock_keep(released)) == FAILED)
            return FAILED;
    }
    return DONE;
}

outcome replay_flush(replay *all, walker *by, const plan_op *op)
{
    for (uint32_t k = 0; op->channel_type == PLAN_PORT && k < op->channel_count; k++) {
        if (give_by_port(all, by, op, k, &by->pending) == FAILED)
            return FAILED;
    }
    return DONE;
}

static outcome sync_arrive(replay *all, walker *by, plan_barrier *round, barrier_clocks *at)
{
    vector_clock_entry own = {by->chain, by->time, by->time};
    bool complete = plan_barrier_arrive(round, by->pos, (plan_event){0});
    if (!replay_note_arrival(all, by, at) || !vector_clock_add(&all->store, &at->next, by->start) ||
        !vector_clock_add(&all->store, &at->next, by->pending) ||
        !vector_clock_add_one(&all->store, &at->next, own))
        return FAILED;
    if (!complete)
        return DONE;
    vector_clock_drop(&all->store, at->known);
    at->known = at->next;
    at->next = NULL;
    replay_note_round(at);
    return DONE;
}

static outcome sync_barrier(replay *all, walker *by, const plan_op *op)
{
    uint32_t number = plan_stepper_barrier(&all->stepper, by->pos, op);
    plan_barrier *round = &all->stepper.barriers.data[number];
    barrier_clocks *at = &all->barriers[number];
    if (!by->pos->arrived && sync_arrive(all, by, round, at) == FAILED)
        return FAILED;
    if (!plan_barrier_pass(round, by->pos))
        return WAITS;
    if (!replay_note_barrier(all, by, at) ||
        !vector_clock_add(&all->store, &by->pending, at->known))
        return FAILED;
    return walker_join(all, by) ? DONE : FAILED;
}

outcome replay_sync(replay *all, walker *by, const plan_op *op)
{
    switch (op->kind) {
    case PLAN_SIGNAL:
    case PLAN_RELAXED_SIGNAL:
        return sync_signal_all(all, by, op);
    case PLAN_SEM_RELEASE:
        return sync_release_all(all, by, op);
    case PLAN_FLUSH:
        return all->flushes_lost ? DONE : replay_flush(all, by, op);
    case PLAN_BARRIER:
        return sync_barrier(all, by, op);
    default:
        return sync_take_all(all, by, op);
    }
}
