#include <string.h>

#include "check/replay/replay.h"

static void *prepare_take_zeroed(replay *all, size_t count, size_t bytes)
{
    void *taken = arena_take(&all->memory, count * bytes + 1);
    return taken ? memset(taken, 0, count * bytes) : NULL;
}

/* ---- givers and takers ---- */

static bool note_user(counter *at, bool gives, uint32_t chain, uint64_t times)
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
static bool prepare_note_shared(replay *all, counter *at)
{
    if (at->shared != NOBODY || (at->givers.count <= 1 && at->takers.count <= 1))
        return true;
    at->shared = (uint32_t)all->shared.count;
    return array_push(&all->shared, at->initial);
}

static bool note_op(replay *all, const walker *by, const plan_op *op, uint64_t times)
{
    bool semaphores = op->kind == PLAN_SEM_ACQUIRE || op->kind == PLAN_SEM_RELEASE;
    bool gives = op->kind == PLAN_SIGNAL || op->kind == PLAN_RELAXED_SIGNAL ||
                 op->kind == PLAN_SEM_RELEASE || op->kind == PLAN_PUT_WITH_SIGNAL ||
                 op->kind == PLAN_PUT_WITH_SIGNAL_AND_FLUSH;
    bool takes =
        op->kind == PLAN_WAIT || op->kind == PLAN_RELAXED_WAIT || op->kind == PLAN_SEM_ACQUIRE;
    uint32_t count = semaphores ? op->semaphore_count : op->channel_count;
    for (uint32_t k = 0; (gives || takes) && k < count; k++) {
        counter *at = gives ? replay_given(all, by->rank, by->block, op, k)
                            : replay_taken(all, by->rank, by->block, op, k);
        if (at && (!note_user(at, gives, by->chain, times) || !prepare_note_shared(all, at)))
            return false;
    }
    return true;
}

static banyan_status note_barrier(replay *all, int rank, const plan_op *op)
{
    uint32_t key[2] = {(uint32_t)rank, op->barrier};
    uint64_t place;
    if (op->kind != PLAN_BARRIER || map_get(&all->meetings, key, sizeof key, &place))
        return BANYAN_OK;
    uint32_t *kept = prepare_take_zeroed(all, 1, sizeof key);
    meeting new = {.rank = rank, .barrier = op->barrier, .members = op->barrier_members};
    if (!kept || !array_push(&all->meeting_list, new))
        return BANYAN_ERR_NO_MEMORY;
    memcpy(kept, key, sizeof key);
    return map_put(&all->meetings, kept, sizeof key, all->meeting_list.count - 1)
               ? BANYAN_OK
               : BANYAN_ERR_NO_MEMORY;
}

static banyan_status prepare_note_ops(replay *all, const walker *by, const plan_op *ops,
                                      uint32_t count, uint64_t times)
{
    for (uint32_t i = 0; i < count; i++) {
        const plan_op *op = &ops[i];
        if ((int)op->kind < 0 || op->kind >= PLAN_OP_KINDS)
            return error_set(BANYAN_ERR_UNSUPPORTED,
                             "rank %d, thread block %u: the checker knows no operation of kind %d",
                             by->rank, by->index, (int)op->kind);
        if (!note_op(all, by, op, times))
            return BANYAN_ERR_NO_MEMORY;
        RETURN_IF_FAILED(note_barrier(all, by->rank, op));
        uint64_t inside = plan_geometry_iterations(all->geometry, op);
        RETURN_IF_FAILED(prepare_note_ops(all, by, op->ops, op->op_count, inside));
        if (op->kind == PLAN_PIPELINE &&
            all->geometry->scratch_stride < all->geometry->chunk_bytes && inside > all->flags)
            all->flags = (uint32_t)inside;
    }
    return BANYAN_OK;
}

/* ---- ranks ---- */

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

static counter *make_counters(replay *all, uint32_t count)
{
    counter *made = prepare_take_zeroed(all, count, sizeof *made);
    for (uint32_t i = 0; made && i < count; i++)
        made[i].shared = NOBODY;
    return made;
}

static bool prepare_rank(replay *all, int r)
{
    const plan_rank *of = &all->plan->ranks[r];
    rank_state *rank = &all->ranks[r];
    place_buffers(all, r);
    for (int type = PLAN_MEMORY; type <= PLAN_PORT; type++) {
        rank->channels[type] = make_counters(all, of->channel_count[type]);
        if (!rank->channels[type])
            return false;
    }
    rank->semaphores = make_counters(all, of->semaphore_count);
    rank->port_times = prepare_take_zeroed(all, of->channel_count[PLAN_PORT], sizeof(uint32_t));
    if (!rank->semaphores || !rank->port_times)
        return false;
    for (uint32_t i = 0; i < of->semaphore_count; i++)
        rank->semaphores[i].initial = of->semaphores[i];
    for (uint32_t i = 0; i < of->channel_count[PLAN_PORT]; i++)
        rank->port_times[i] = 1;
    rank->walkers = &all->walkers[all->walker_count];
    for (uint32_t b = 0; b < of->block_count; b++)
        all->walkers[all->walker_count++] = (walker){.rank = r,
                                                     .index = b,
                                                     .block = &of->blocks[b],
                                                     .chain = all->chains.callers[r] + 1 + b,
                                                     .instance = NOBODY};
    return true;
}

banyan_status replay_prepare(replay *all)
{
    const banyan_plan *plan = all->plan;
    size_t blocks = 0;
    for (int r = 0; r < plan->rank_count; r++)
        blocks += plan->ranks[r].block_count;
    RETURN_IF_FAILED(chains_make(plan, &all->memory, &all->chains));
    all->flags = 1;
    all->store.chains = &all->chains;
    all->cells.store = &all->store;
    all->ranks = prepare_take_zeroed(all, (size_t)plan->rank_count, sizeof *all->ranks);
    all->walkers = prepare_take_zeroed(all, blocks, sizeof *all->walkers);
    if (!all->ranks || !all->walkers || !values_make(&all->values) ||
        !array_push(&all->origins, (origin_link){NOBODY, 0, 0}))
        return BANYAN_ERR_NO_MEMORY;
    for (int r = 0; r < plan->rank_count; r++) {
        if (!prepare_rank(all, r))
            return BANYAN_ERR_NO_MEMORY;
    }
    RETURN_IF_FAILED(plan_pairs_make(plan, &all->pairs));
    for (size_t i = 0; i < all->walker_count; i++) {
        const walker *by = &all->walkers[i];
        RETURN_IF_FAILED(prepare_note_ops(all, by, by->block->ops, by->block->op_count, 1));
    }
    replay_mark_drifts(all);
    if (all->shared.count > 0 && !order_net_make(&all->net, (uint32_t)all->walker_count,
                                                 all->shared.data, (uint32_t)all->shared.count))
        return BANYAN_ERR_NO_MEMORY;
    return BANYAN_OK;
}

/* ---- the end ---- */

static void free_counters(replay *all, counter *list, uint32_t count)
{
    for (uint32_t i = 0; list && i < count; i++) {
        for (size_t k = 0; k < list[i].tokens.count; k++)
            vector_clock_drop(&all->store, list[i].tokens.data[k].known);
        array_free(&list[i].tokens);
        array_free(&list[i].givers);
        array_free(&list[i].takers);
    }
}

static void prepare_free_rank(replay *all, int r)
{
    const plan_rank *of = &all->plan->ranks[r];
    rank_state *rank = &all->ranks[r];
    free_counters(all, rank->channels[PLAN_MEMORY], of->channel_count[PLAN_MEMORY]);
    free_counters(all, rank->channels[PLAN_PORT], of->channel_count[PLAN_PORT]);
    free_counters(all, rank->semaphores, of->semaphore_count);
    for (int kind = 0; kind < SPACE_KINDS; kind++) {
        array_free(&rank->spaces[kind][0].edges);
        array_free(&rank->spaces[kind][1].edges);
    }
    vector_clock_drop(&all->store, rank->caller);
}

void replay_free(replay *all)
{
    for (size_t i = 0; i < all->walker_count; i++) {
        walker *by = &all->walkers[i];
        vector_clock_drop(&all->store, by->start);
        vector_clock_drop(&all->store, by->pending);
        vector_clock_drop(&all->store, by->told);
        vector_clock_drop(&all->store, by->told_relaxed);
        array_free(&by->counts);
    }
    for (int r = 0; all->ranks && r < all->plan->rank_count; r++)
        prepare_free_rank(all, r);
    for (size_t i = 0; i < all->meeting_list.count; i++) {
        vector_clock_drop(&all->store, all->meeting_list.data[i].known);
        vector_clock_drop(&all->store, all->meeting_list.data[i].next);
        array_free(&all->meeting_list.data[i].over);
        array_free(&all->meeting_list.data[i].arrivals);
    }
    cells_free(&all->cells);
    values_free(&all->values);
    plan_pairs_free(&all->pairs);
    map_free(&all->meetings);
    array_free(&all->meeting_list);
    array_free(&all->instances);
    array_free(&all->origins);
    array_free(&all->parts);
    array_free(&all->shared);
    array_free(&all->event_of);
    order_net_free(&all->net);
    arena_free(&all->memory);
}
