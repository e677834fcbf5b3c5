#include "plan/stepper.h"

#include <inttypes.h>
#include <stdio.h>

#include "plan/op.h"
#include "plan/pairs.h"

static banyan_status number_ranks(plan_stepper *all)
{
    const banyan_plan *plan = all->plan;
    uint64_t counters = 0, blocks = 0;
    size_t ranks = (size_t)plan->rank_count;
    all->first_counter = arena_zeroed(&all->memory, ranks, sizeof(uint32_t));
    all->first_block = arena_zeroed(&all->memory, ranks + 1, sizeof(uint32_t));
    if (!all->first_counter || !all->first_block)
        return BANYAN_ERR_NO_MEMORY;
    for (size_t r = 0; r < ranks; r++) {
        const plan_rank *rank = &plan->ranks[r];
        all->first_counter[r] = (uint32_t)counters;
        all->first_block[r] = (uint32_t)blocks;
        counters += (uint64_t)rank->channel_count[PLAN_MEMORY] + rank->channel_count[PLAN_PORT] +
                    rank->semaphore_count;
        blocks += rank->block_count;
        if (counters >= PLAN_NONE || blocks >= PLAN_NONE)
            return error_set(BANYAN_ERR_UNSUPPORTED,
                             "plan %s has more thread blocks, channels or semaphores than can be "
                             "numbered",
                             plan->name);
    }
    all->first_block[ranks] = all->block_count = (uint32_t)blocks;
    all->counter_count = (uint32_t)counters;
    all->counters = arena_zeroed(&all->memory, counters, sizeof *all->counters);
    all->peers = arena_zeroed(&all->memory, counters, sizeof *all->peers);
    all->blocks = arena_zeroed(&all->memory, blocks, sizeof *all->blocks);
    return all->counters && all->peers && all->blocks ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
}

static void begin_rank(plan_stepper *all, const plan_pairs *pairs, int r)
{
    const plan_rank *rank = &all->plan->ranks[r];
    uint32_t at = all->first_counter[r];
    for (plan_channel_type type = PLAN_MEMORY; type <= PLAN_PORT; type++) {
        for (uint32_t i = 0; i < rank->channel_count[type]; i++, at++) {
            int peer;
            uint32_t back;
            bool paired = plan_pairs_find(pairs, r, type, i, &peer, &back);
            all->peers[at] = paired ? plan_stepper_channel(all, peer, type, back) : PLAN_NONE;
            all->counters[at] = (plan_counter){.rank = r, .type = type, .number = i};
        }
    }
    for (uint32_t i = 0; i < rank->semaphore_count; i++)
        all->counters[at++] =
            (plan_counter){.rank = r, .number = i, .initial = rank->semaphores[i]};
    for (uint32_t b = 0; b < rank->block_count; b++)
        all->blocks[all->first_block[r] + b] =
            (plan_position){.rank = r, .number = b, .block = &rank->blocks[b]};
}

static bool stepper_number_barriers(plan_stepper *all)
{
    for (plan_cursor at = {.plan = all->plan}; plan_cursor_next(&at);) {
        uint32_t key[2] = {(uint32_t)at.rank, at.op->barrier};
        uint64_t place;
        if (at.op->kind != PLAN_BARRIER || map_get(&all->barrier_places, key, sizeof key, &place))
            continue;
        plan_barrier new = {
            .rank = at.rank, .number = at.op->barrier, .members = at.op->barrier_members};
        if (!array_push(&all->barriers, new) ||
            !map_put_copy(&all->barrier_places, &all->memory, key, sizeof key,
                          all->barriers.count - 1))
            return false;
    }
    return true;
}

banyan_status plan_stepper_make(const banyan_plan *plan, const plan_geometry *geometry,
                                plan_stepper *made)
{
    plan_pairs pairs;
    *made = (plan_stepper){.plan = plan, .geometry = geometry};
    RETURN_IF_FAILED(number_ranks(made));
    RETURN_IF_FAILED(plan_pairs_make(plan, &pairs));
    for (int r = 0; r < plan->rank_count; r++)
        begin_rank(made, &pairs, r);
    plan_pairs_free(&pairs);
    return stepper_number_barriers(made) ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
}

void plan_stepper_free(plan_stepper *old)
{
    for (uint32_t i = 0; old->counters && i < old->counter_count; i++)
        array_free(&old->counters[i].events);
    array_free(&old->barriers);
    map_free(&old->barrier_places);
    arena_free(&old->memory);
}

void plan_position_reset(plan_position *by)
{
    *by = (plan_position){.rank = by->rank, .number = by->number, .block = by->block};
}

bool plan_position_settle(const plan_stepper *all, plan_position *by)
{
    for (; by->at < by->block->op_count; by->at++) {
        const plan_op *op = &by->block->ops[by->at];
        if (by->iteration > 0 || by->inner > 0)
            return true;
        by->iterations = op->kind == PLAN_PIPELINE && op->op_count == 0
                             ? 0
                             : plan_geometry_iterations(all->geometry, op);
        if (by->iterations > 0)
            return true;
    }
    return false;
}

void plan_position_next(plan_position *by)
{
    const plan_op *loop = plan_position_loop(by);
    by->taken = 0;
    if (loop && ++by->inner < loop->op_count)
        return;
    by->inner = 0;
    if (++by->iteration < by->iterations)
        return;
    by->iteration = 0;
    by->at++;
}

bool plan_counter_give(plan_counter *to, plan_event when)
{
    if (to->taken == to->initial + to->given)
        to->events.count = 0;
    to->given++;
    return array_push(&to->events, when);
}

bool plan_counter_take(plan_counter *from, plan_event *latest)
{
    uint64_t left = from->initial + from->given - from->taken;
    if (left == 0)
        return false;
    from->taken++;
    if (left <= from->events.count)
        plan_event_raise(latest, from->events.data[from->events.count - left]);
    return true;
}

uint32_t plan_op_gives(const plan_op *op)
{
    if (op->kind == PLAN_SEM_RELEASE)
        return op->semaphore_count;
    return plan_op_form_of(op->kind)->signals ? op->channel_count : 0;
}

uint32_t plan_op_takes(const plan_op *op)
{
    if (op->kind == PLAN_SEM_ACQUIRE)
        return op->semaphore_count;
    return op->kind == PLAN_WAIT || op->kind == PLAN_RELAXED_WAIT ? op->channel_count : 0;
}

uint32_t plan_stepper_taken(const plan_stepper *all, const plan_position *by, const plan_op *op,
                            uint32_t k)
{
    if (op->kind == PLAN_SEM_ACQUIRE || op->kind == PLAN_SEM_RELEASE)
        return plan_stepper_channel(all, by->rank, PLAN_PORT,
                                    all->plan->ranks[by->rank].channel_count[PLAN_PORT]) +
               op->semaphores[k];
    return plan_stepper_channel(all, by->rank, op->channel_type,
                                plan_channel_of(by->block, op, op->channels[k]));
}

uint32_t plan_stepper_given(const plan_stepper *all, const plan_position *by, const plan_op *op,
                            uint32_t k)
{
    uint32_t own = plan_stepper_taken(all, by, op, k);
    return op->kind == PLAN_SEM_RELEASE ? own : all->peers[own];
}

bool plan_stepper_take(plan_stepper *all, plan_position *by, plan_event *latest)
{
    const plan_op *op = plan_position_op(by);
    for (; by->taken < plan_op_takes(op); by->taken++) {
        uint32_t from = plan_stepper_taken(all, by, op, by->taken);
        if (!plan_counter_take(&all->counters[from], latest))
            return false;
    }
    return true;
}

uint32_t plan_stepper_barrier(const plan_stepper *all, const plan_position *by, const plan_op *op)
{
    uint32_t key[2] = {(uint32_t)by->rank, op->barrier};
    uint64_t place = PLAN_NONE;
    map_get(&all->barrier_places, key, sizeof key, &place);
    return (uint32_t)place;
}

bool plan_barrier_arrive(plan_barrier *at, plan_position *by, plan_event when)
{
    by->arrived = true;
    by->rounds = at->rounds;
    plan_event_raise(&at->next, when);
    if (++at->arrived < at->members)
        return false;
    at->arrived = 0;
    at->rounds++;
    at->last = at->next;
    at->next = (plan_event){0};
    return true;
}

bool plan_barrier_pass(const plan_barrier *at, plan_position *by)
{
    if (at->rounds == by->rounds)
        return false;
    by->arrived = false;
    return true;
}

static bool gives_to(const plan_stepper *all, const plan_position *by, const plan_op *op,
                     uint32_t counter)
{
    for (uint32_t k = 0; k < plan_op_gives(op); k++) {
        if (plan_stepper_given(all, by, op, k) == counter)
            return true;
    }
    return false;
}

/* True if the operation, or one in its body, provides what the other one waits for. */
static bool provides(const plan_stepper *all, const plan_position *by, const plan_op *op,
                     const plan_position *to, const plan_op *wanted)
{
    for (uint32_t i = 0; i < op->op_count; i++) {
        if (provides(all, by, &op->ops[i], to, wanted))
            return true;
    }
    if (wanted->kind == PLAN_BARRIER)
        return op->kind == PLAN_BARRIER && op->barrier == wanted->barrier;
    if (plan_op_takes(wanted) > 0)
        return gives_to(all, by, op, plan_stepper_taken(all, to, wanted, to->taken));
    for (uint32_t i = 0; i < wanted->source_count; i++) {
        if (plan_source_is_packets(wanted, i) &&
            plan_op_writes_to(all->plan, by->rank, by->block, op, to->rank, &wanted->sources[i]))
            return true;
    }
    return false;
}

static bool could_help(const plan_stepper *all, const plan_position *other, const plan_position *to,
                       const plan_op *wanted)
{
    bool there = wanted->kind == PLAN_BARRIER && other->arrived &&
                 plan_position_op(other)->barrier == wanted->barrier;
    for (uint32_t i = other->at; i < other->block->op_count && other != to && !there; i++) {
        if (provides(all, other, &other->block->ops[i], to, wanted))
            return true;
    }
    return false;
}

uint32_t plan_stepper_helper(const plan_stepper *all, const plan_position *by)
{
    const plan_op *wanted = plan_position_op(by);
    int rank = by->rank, ranks = 1;
    if (wanted->kind == PLAN_WAIT || wanted->kind == PLAN_RELAXED_WAIT)
        rank = all->plan->ranks[rank].peers[wanted->channel_type][plan_channel_of(
            by->block, wanted, wanted->channels[by->taken])];
    else if (wanted->kind != PLAN_BARRIER && wanted->kind != PLAN_SEM_ACQUIRE)
        rank = 0, ranks = all->plan->rank_count; /* packets may come from any rank */
    for (uint32_t i = all->first_block[rank]; i < all->first_block[rank + ranks]; i++) {
        if (could_help(all, &all->blocks[i], by, wanted))
            return i;
    }
    return PLAN_NONE;
}

void plan_stepper_describe(const plan_stepper *all, const plan_position *by,
                           char text[PLAN_WANT_BYTES])
{
    const plan_op *op = plan_position_op(by);
    if (op->kind == PLAN_WAIT || op->kind == PLAN_RELAXED_WAIT) {
        uint32_t channel = plan_channel_of(by->block, op, op->channels[by->taken]);
        snprintf(text, PLAN_WANT_BYTES, "a signal of rank %d on %s channel %" PRIu32,
                 all->plan->ranks[by->rank].peers[op->channel_type][channel],
                 plan_channel_name(op->channel_type), channel);
    } else if (op->kind == PLAN_SEM_ACQUIRE) {
        snprintf(text, PLAN_WANT_BYTES, "a release of semaphore %" PRIu32,
                 op->semaphores[by->taken]);
    } else if (op->kind == PLAN_BARRIER) {
        snprintf(text, PLAN_WANT_BYTES, "the others at barrier %" PRIu32, op->barrier);
    } else {
        snprintf(text, PLAN_WANT_BYTES, "packets in its scratch");
    }
}
