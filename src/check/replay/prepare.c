#include "check/replay/replay.h"

static bool note_user(replay_counter *at, bool gives, uint32_t chain, uint64_t times)
{
    size_t count = gives ? at->givers.count : at->takers.count;
    counter_user *users = gives ? at->givers.data : at->takers.data;
    for (size_t i = 0; i < count; i++) {
        if (users[i].chain == chain) {
            users[i].per_run += times;
            return true;
        }
    }
    counter_user new = {.chain = chain, .per_run = times};
    return gives ? array_push(&at->givers, new) : array_push(&at->takers, new);
}

/* True if several blocks give to the counter, or take from it. */
static bool prepare_note_shared(replay *all, replay_counter *at)
{
    if (at->shared != NOBODY || (at->givers.count <= 1 && at->takers.count <= 1))
        return true;
    at->shared = (uint32_t)all->shared.count;
    return array_push(&all->shared, at->own->initial);
}

static bool note_op(replay *all, const walker *by, const plan_op *op, uint64_t times)
{
    uint32_t gives = plan_op_gives(op), takes = plan_op_takes(op);
    for (uint32_t k = 0; k < gives + takes; k++) {
        uint32_t number = gives > 0 ? plan_stepper_given(&all->stepper, by->pos, op, k)
                                    : plan_stepper_taken(&all->stepper, by->pos, op, k);
        replay_counter *at = number == PLAN_NONE ? NULL : &all->counters[number];
        if (at && (!note_user(at, gives > 0, by->chain, times) || !prepare_note_shared(all, at)))
            return false;
    }
    return true;
}

static banyan_status prepare_note_ops(replay *all)
{
    bool rounds = all->geometry->scratch_stride < all->geometry->chunk_bytes;
    for (plan_cursor at = {.plan = all->plan}; plan_cursor_next(&at);) {
        const walker *by = &all->ranks[at.rank].walkers[at.number];
        if ((int)at.op->kind < 0 || at.op->kind >= PLAN_OP_KINDS)
            return error_set(BANYAN_ERR_UNSUPPORTED,
                             "rank %d, thread block %u: the checker knows no operation of kind %d",
                             at.rank, at.number, (int)at.op->kind);
        uint64_t times = plan_geometry_iterations(all->geometry, at.loop ? at.loop : at.op);
        if (!note_op(all, by, at.op, times))
            return BANYAN_ERR_NO_MEMORY;
        if (rounds && at.op->kind == PLAN_PIPELINE && times > all->flags)
            all->flags = (uint32_t)times;
    }
    return BANYAN_OK;
}

/* Place buffers as the executor does: all-gather's input is a block of the output, and so on. */
static void place_buffers(replay *all, int r)
{
    rank_state *rank = &all->ranks[r];
    for (int b = PLAN_INPUT; b <= PLAN_OUTPUT; b++)
        rank->bytes[b] = plan_geometry_bytes(all->geometry, all->plan, r, (plan_buffer)b);
    if (!all->plan->in_place)
        return;
    if (all->plan->collective == BANYAN_ALLGATHER)
        rank->places[PLAN_INPUT] = (uint64_t)r * rank->bytes[PLAN_INPUT];
    if (all->plan->collective == BANYAN_REDUCESCATTER)
        rank->places[PLAN_OUTPUT] = (uint64_t)r * rank->bytes[PLAN_OUTPUT];
}

static bool prepare_rank(replay *all, int r)
{
    const plan_rank *of = &all->plan->ranks[r];
    rank_state *rank = &all->ranks[r];
    place_buffers(all, r);
    rank->port_times = arena_take(&all->memory, of->channel_count[PLAN_PORT] * sizeof(uint32_t));
    for (uint32_t i = 0; rank->port_times && i < of->channel_count[PLAN_PORT]; i++)
        rank->port_times[i] = 1;
    uint32_t first = all->stepper.first_block[r];
    rank->walkers = &all->walkers[first];
    for (uint32_t b = 0; b < of->block_count; b++)
        rank->walkers[b] = (walker){.pos = &all->stepper.blocks[first + b],
                                    .chain = all->chains.callers[r] + 1 + b,
                                    .instance = NOBODY};
    return rank->port_times != NULL;
}

banyan_status replay_prepare(replay *all)
{
    const banyan_plan *plan = all->plan;
    RETURN_IF_FAILED(plan_stepper_make(plan, all->geometry, &all->stepper));
    uint32_t counters = all->stepper.counter_count, blocks = all->stepper.block_count;
    RETURN_IF_FAILED(chains_make(plan, &all->memory, &all->chains));
    all->flags = 1;
    all->store.chains = &all->chains;
    all->cells.store = &all->store;
    all->ranks = arena_zeroed(&all->memory, (size_t)plan->rank_count, sizeof *all->ranks);
    all->walkers = arena_zeroed(&all->memory, blocks, sizeof *all->walkers);
    all->counters = arena_zeroed(&all->memory, counters, sizeof *all->counters);
    all->barriers = arena_zeroed(&all->memory, all->stepper.barriers.count, sizeof *all->barriers);
    if (!all->ranks || !all->walkers || !all->counters || !all->barriers ||
        !values_make(&all->values) || !array_push(&all->origins, (origin_link){NOBODY, 0, 0}))
        return BANYAN_ERR_NO_MEMORY;
    for (int r = 0; r < plan->rank_count; r++) {
        if (!prepare_rank(all, r))
            return BANYAN_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < counters; i++)
        all->counters[i] = (replay_counter){.own = &all->stepper.counters[i], .shared = NOBODY};
    RETURN_IF_FAILED(prepare_note_ops(all));
    replay_mark_drifts(all);
    if (all->shared.count > 0 &&
        !order_net_make(&all->net, blocks, all->shared.data, (uint32_t)all->shared.count))
        return BANYAN_ERR_NO_MEMORY;
    return BANYAN_OK;
}

void replay_free(replay *all)
{
    for (uint32_t i = 0; all->walkers && i < all->stepper.block_count; i++) {
        walker *by = &all->walkers[i];
        vector_clock_drop(&all->store, by->start);
        vector_clock_drop(&all->store, by->pending);
        vector_clock_drop(&all->store, by->released);
        vector_clock_drop(&all->store, by->released_relaxed);
        array_free(&by->counts);
    }
    for (uint32_t i = 0; all->counters && i < all->stepper.counter_count; i++) {
        replay_counter *at = &all->counters[i];
        for (size_t k = 0; k < at->tokens.count; k++)
            vector_clock_drop(&all->store, at->tokens.data[k].known);
        array_free(&at->tokens);
        array_free(&at->givers);
        array_free(&at->takers);
    }
    for (int r = 0; all->ranks && r < all->plan->rank_count; r++) {
        for (int kind = 0; kind < 2 * SPACE_KINDS; kind++)
            array_free(&all->ranks[r].spaces[kind / 2][kind % 2].edges);
        vector_clock_drop(&all->store, all->ranks[r].caller);
    }
    for (size_t i = 0; all->barriers && i < all->stepper.barriers.count; i++) {
        vector_clock_drop(&all->store, all->barriers[i].known);
        vector_clock_drop(&all->store, all->barriers[i].next);
        array_free(&all->barriers[i].over);
        array_free(&all->barriers[i].arrivals);
    }
    cells_free(&all->cells);
    values_free(&all->values);
    plan_stepper_free(&all->stepper);
    array_free(&all->instances);
    array_free(&all->origins);
    array_free(&all->parts);
    array_free(&all->shared);
    array_free(&all->event_of);
    order_net_free(&all->net);
    arena_free(&all->memory);
}
