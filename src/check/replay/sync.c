/* Replay signals and waits, semaphores, and barriers. */
#include "check/replay/replay.h"

/* ---- counters ---- */

static bool sync_is_semaphore(const plan_op *op)
{
    return op->kind == PLAN_SEM_ACQUIRE || op->kind == PLAN_SEM_RELEASE;
}

counter *replay_given(replay *all, int rank, const plan_thread_block *block, const plan_op *op,
                      uint32_t k)
{
    int peer;
    uint32_t back;
    if (sync_is_semaphore(op))
        return &all->ranks[rank].semaphores[op->semaphores[k]];
    uint32_t channel = plan_channel_of(block, op, op->channels[k]);
    if (!plan_pairs_find(&all->pairs, rank, op->channel_type, channel, &peer, &back))
        return NULL;
    return &all->ranks[peer].channels[op->channel_type][back];
}

counter *replay_taken(replay *all, int rank, const plan_thread_block *block, const plan_op *op,
                      uint32_t k)
{
    if (sync_is_semaphore(op))
        return &all->ranks[rank].semaphores[op->semaphores[k]];
    return &all->ranks[rank]
                .channels[op->channel_type][plan_channel_of(block, op, op->channels[k])];
}

static counter_user *sync_user_of(counter_user *users, size_t count, uint32_t chain)
{
    for (size_t i = 0; i < count; i++) {
        if (users[i].chain == chain)
            return &users[i];
    }
    return NULL;
}

/* Give a token, which takes over `told`. */
static outcome sync_give(replay *all, walker *by, counter *to, vector_clock *told)
{
    counter_user *giver = sync_user_of(to->givers.data, to->givers.count, by->chain);
    token new = {.known = told, .chain = by->chain, .ordinal = ++giver->so_far};
    if (replay_note_give(all, by, to, &new.given) && array_push(&to->tokens, new))
        return DONE;
    vector_clock_drop(&all->store, told);
    return FAILED;
}

/* When not all orders could be searched: at least `least` other tokens are taken before this one,
 * so a token without which there are fewer must have been given before. */
static bool is_needed(const counter *at, const token *one, uint32_t run, uint64_t least)
{
    uint64_t without = one->ordinal - 1 + at->initial;
    for (size_t i = 0; i < at->givers.count; i++) {
        if (at->givers.data[i].chain != one->chain)
            without += at->givers.data[i].per_run * (run + 1);
    }
    return without < least;
}

static outcome sync_hear(replay *all, walker *by, const token *one, bool relaxed)
{
    if (!relaxed)
        return vector_clock_add(&all->store, &by->pending, one->known) ? DONE : FAILED;
    int rank = all->chains.list[one->chain].rank;
    vector_clock *less = vector_clock_relax(&all->store, one->known, rank);
    bool heard = less && vector_clock_add(&all->store, &by->pending, less);
    vector_clock_drop(&all->store, less);
    return heard ? DONE : FAILED;
}

/* One giver and one taker: the k-th take matches the k-th give. */
static outcome hear_in_order(replay *all, walker *by, counter *at, token *one, bool relaxed)
{
    if (!one || at->drifts)
        return DONE;
    outcome result = sync_hear(all, by, one, relaxed);
    vector_clock_drop(&all->store, one->known);
    one->known = NULL;
    return result;
}

static outcome hear_certain(replay *all, walker *by, counter *at, bool relaxed)
{
    if (at->drifts)
        return DONE;
    order_need here = replay_net_place(all, by);
    uint32_t run = all->ranks[by->rank].run;
    uint64_t least = 0;
    for (size_t i = 0; i < at->takers.count; i++)
        least += at->takers.data[i].chain == by->chain ? at->takers.data[i].so_far
                                                       : at->takers.data[i].per_run * run;
    for (size_t i = 0; i < at->tokens.count; i++) {
        const token *one = &at->tokens.data[i];
        bool certain = all->orders ? orders_follow(all->orders, one->given, here)
                                   : is_needed(at, one, run, least);
        if (certain && sync_hear(all, by, one, relaxed) == FAILED)
            return FAILED;
    }
    return DONE;
}

/* True if the block may take next in the given order. */
static bool is_next(const replay *all, const walker *by, const counter *at)
{
    uint64_t before = 0;
    for (size_t i = 0; all->forced && i < all->forced->count; i++) {
        const order_take *one = &all->forced->data[i];
        if (one->counter == at->shared && before++ == at->taken)
            return &all->walkers[one->lane] == by;
    }
    return !all->forced;
}

static outcome sync_take(replay *all, walker *by, counter *at, bool relaxed)
{
    bool shared = at->shared != NOBODY;
    if (at->taken >= at->initial && at->taken - at->initial >= at->tokens.count)
        return WAITS;
    if (shared && !is_next(all, by, at))
        return WAITS;
    at->taken++;
    counter_user *taker = sync_user_of(at->takers.data, at->takers.count, by->chain);
    taker->so_far++;
    token *one = at->taken > at->initial ? &at->tokens.data[at->taken - at->initial - 1] : NULL;
    outcome heard =
        shared ? hear_certain(all, by, at, relaxed) : hear_in_order(all, by, at, one, relaxed);
    return heard == DONE && replay_note_take(all, by, at, one) ? DONE : FAILED;
}

static outcome sync_take_all(replay *all, walker *by, const plan_op *op)
{
    uint32_t count = sync_is_semaphore(op) ? op->semaphore_count : op->channel_count;
    for (; by->taken < count; by->taken++) {
        counter *from = replay_taken(all, by->rank, by->block, op, by->taken);
        outcome result = sync_take(all, by, from, op->kind == PLAN_RELAXED_WAIT);
        if (result != DONE)
            return result;
    }
    return DONE;
}

/* ---- giving ---- */

/* A port channel's signal shows that all its earlier requests are done. */
static outcome give_by_port(replay *all, walker *by, const plan_op *op, uint32_t k,
                            vector_clock **told)
{
    uint32_t channel = plan_channel_of(by->block, op, op->channels[k]);
    uint32_t time = all->ranks[by->rank].port_times[channel]++;
    uint32_t chain =
        all->chains.callers[by->rank] + 1 + all->plan->ranks[by->rank].block_count + channel;
    return vector_clock_add_one(&all->store, told, (vector_clock_entry){chain, time, time})
               ? DONE
               : FAILED;
}

outcome replay_signal(replay *all, walker *by, const plan_op *op, uint32_t k, bool relaxed)
{
    counter *to = replay_given(all, by->rank, by->block, op, k);
    vector_clock *told;
    if (!to)
        return DONE;
    if (!walker_tell(all, by, relaxed, &told))
        return FAILED;
    vector_clock_keep(told);
    if (op->channel_type == PLAN_PORT && give_by_port(all, by, op, k, &told) == FAILED) {
        vector_clock_drop(&all->store, told);
        return FAILED;
    }
    return sync_give(all, by, to, told);
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
    vector_clock *told;
    for (uint32_t k = 0; k < op->semaphore_count; k++) {
        counter *to = replay_given(all, by->rank, by->block, op, k);
        if (!walker_tell(all, by, false, &told) ||
            sync_give(all, by, to, vector_clock_keep(told)) == FAILED)
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

/* ---- barriers ---- */

static outcome sync_arrive_at(replay *all, walker *by, meeting *at)
{
    vector_clock_entry own = {by->chain, by->time, by->time};
    by->arrived = true;
    by->rounds = at->rounds;
    if (!replay_note_arrival(all, by, at) || !vector_clock_add(&all->store, &at->next, by->start) ||
        !vector_clock_add(&all->store, &at->next, by->pending) ||
        !vector_clock_add_one(&all->store, &at->next, own))
        return FAILED;
    if (++at->arrived < at->members)
        return DONE;
    vector_clock_drop(&all->store, at->known);
    at->known = at->next;
    at->next = NULL;
    at->arrived = 0;
    at->rounds++;
    replay_note_round(at);
    return DONE;
}

static outcome sync_meet(replay *all, walker *by, const plan_op *op)
{
    uint32_t key[2] = {(uint32_t)by->rank, op->barrier};
    uint64_t place = 0;
    map_get(&all->meetings, key, sizeof key, &place);
    meeting *at = &all->meeting_list.data[place];
    if (!by->arrived && sync_arrive_at(all, by, at) == FAILED)
        return FAILED;
    if (at->rounds == by->rounds)
        return WAITS;
    by->arrived = false;
    if (!replay_note_barrier(all, by, at) ||
        !vector_clock_add(&all->store, &by->pending, at->known))
        return FAILED;
    return walker_join(all, by) ? DONE : FAILED;
}

/* ---- all synchronization ---- */

outcome replay_sync(replay *all, walker *by, const plan_op *op)
{
    switch (op->kind) {
    case PLAN_SIGNAL:
    case PLAN_RELAXED_SIGNAL:
        return sync_signal_all(all, by, op);
    case PLAN_SEM_RELEASE:
        return sync_release_all(all, by, op);
    case PLAN_FLUSH:
        return replay_flush(all, by, op);
    case PLAN_BARRIER:
        return sync_meet(all, by, op);
    default:
        return sync_take_all(all, by, op);
    }
}
