/* Passes that insert nops: for requested synchronization, and for data dependencies.
 *
 * Threads of a block run ahead of each other from one operation to the next, until a nop, a barrier
 * or an operation that synchronizes them. So a nop must precede an operation that reads or writes
 * data that an earlier one wrote, or writes data that it read. This holds in this rank's memory and
 * in peers'. */
#include <inttypes.h>

#include "program/compile/interval.h"
#include "program/compile/pass.h"

typedef struct access {
    plan_where where;
    uint64_t start, stop;
    bool write;
} access;

typedef struct buffer_map {
    plan_where where;
    interval_map map;
} buffer_map;

typedef struct block_state {
    ARRAY(buffer_map) buffers;
    size_t used;            /* number in use since the last nop; the rest is kept for reuse */
    ARRAY(access) accesses; /* of the current operation */
} block_state;

/* True if the source is packets, whose flags the reader waits for. Not for those that a reduction
 * reads: data may be there as well. */
static bool waits_for_flags(const plan_op *op, uint32_t source)
{
    return plan_source_is_packets(op, source) && !plan_op_reduces(op->kind);
}

static bool pass_dependencies_add_operand(const ops_place *place, const plan_op *op,
                                          const plan_operand *operand, bool write,
                                          block_state *state)
{
    const int *ranks;
    int room;
    plan_where where = plan_operand_where(place->plan, place->rank, place->block, op, operand);
    int count =
        plan_operand_ranks(place->plan, place->rank, place->block, op, operand, &ranks, &room);
    for (int i = 0; i < count; i++) {
        where.rank = ranks[i];
        if (!array_push(&state->accesses,
                        (access){where, operand->index, operand->index + operand->size, write}))
            return false;
    }
    return true;
}

static bool add_accesses(const ops_place *place, const plan_op *op, block_state *state)
{
    for (uint32_t i = 0; i < op->op_count; i++) {
        if (!add_accesses(place, &op->ops[i], state))
            return false;
    }
    for (uint32_t i = 0; i < op->source_count; i++) {
        if (!waits_for_flags(op, i) &&
            !pass_dependencies_add_operand(place, op, &op->sources[i], false, state))
            return false;
    }
    for (uint32_t i = 0; i < op->destination_count; i++) {
        if (!plan_destination_is_packets(op, i) &&
            !pass_dependencies_add_operand(place, op, &op->destinations[i], true, state))
            return false;
    }
    return true;
}

static void pass_dependencies_forget(block_state *state)
{
    state->used = 0;
}

static interval_map *find_map(const block_state *state, plan_where where)
{
    for (size_t i = state->used; i-- > 0;) {
        buffer_map *at = &state->buffers.data[i];
        if (at->where.rank == where.rank && at->where.buffer == where.buffer)
            return &at->map;
    }
    return NULL;
}

static interval_map *take_map(block_state *state, plan_where where)
{
    interval_map *found = find_map(state, where);
    if (found)
        return found;
    if (state->used == state->buffers.count && !array_push(&state->buffers, (buffer_map){0}))
        return NULL;
    buffer_map *taken = &state->buffers.data[state->used++];
    taken->where = where;
    interval_map_clear(&taken->map);
    return &taken->map;
}

static bool pass_dependencies_depends(const block_state *state)
{
    for (size_t i = 0; i < state->accesses.count; i++) {
        const access *at = &state->accesses.data[i];
        const interval_map *map = find_map(state, at->where);
        if (map && interval_map_conflicts(map, at->start, at->stop, at->write))
            return true;
    }
    return false;
}

static bool pass_dependencies_remember(block_state *state)
{
    for (size_t i = 0; i < state->accesses.count; i++) {
        const access *at = &state->accesses.data[i];
        interval_map *map = take_map(state, at->where);
        if (!map || !interval_map_add(map, at->start, at->stop, at->write))
            return false;
    }
    return true;
}

static bool mark_op(const ops_place *place, plan_op *op, block_state *state)
{
    if (op->kind == PLAN_NOP || op->kind == PLAN_BARRIER) {
        pass_dependencies_forget(state);
        return true;
    }
    state->accesses.count = 0;
    if (!add_accesses(place, op, state))
        return false;
    if (pass_dependencies_depends(state)) {
        op->sync |= PLAN_SYNC_BEFORE;
        pass_dependencies_forget(state);
    }
    return pass_dependencies_remember(state);
}

static uint64_t pass_sync_count_nops(const plan_op *ops, uint32_t count)
{
    uint64_t nops = 0;
    for (uint32_t i = 0; i < count; i++)
        nops += !!(ops[i].sync & PLAN_SYNC_BEFORE) + !!(ops[i].sync & PLAN_SYNC_AFTER);
    return nops;
}

banyan_status pass_sync(const ops_place *place, plan_op **ops, uint32_t *count)
{
    uint64_t nops = pass_sync_count_nops(*ops, *count);
    if (nops == 0)
        return BANYAN_OK;
    if (nops > UINT32_MAX - *count)
        return error_set(BANYAN_ERR_INVALID,
                         "rank %d, thread block %" PRIu32 ": too many operations", place->rank,
                         place->block->id);
    plan_op *placed = plan_take(place->plan, *count + nops, sizeof *placed);
    if (!placed)
        return BANYAN_ERR_NO_MEMORY;
    uint32_t written = 0;
    for (uint32_t i = 0; i < *count; i++) {
        plan_op op = (*ops)[i];
        unsigned sync = op.sync;
        op.sync = 0;
        if (sync & PLAN_SYNC_BEFORE)
            placed[written++] = (plan_op){.kind = PLAN_NOP};
        placed[written++] = op;
        if (sync & PLAN_SYNC_AFTER)
            placed[written++] = (plan_op){.kind = PLAN_NOP};
    }
    *ops = placed;
    *count = written;
    return BANYAN_OK;
}

banyan_status pass_dependencies(const ops_place *place, plan_op **ops, uint32_t *count)
{
    block_state state = {0};
    bool marked = true;
    for (uint32_t i = 0; i < *count && marked; i++)
        marked = mark_op(place, &(*ops)[i], &state);
    for (size_t i = 0; i < state.buffers.count; i++)
        interval_map_free(&state.buffers.data[i].map);
    array_free(&state.buffers);
    array_free(&state.accesses);
    return marked ? pass_sync(place, ops, count) : BANYAN_ERR_NO_MEMORY;
}
