/* Threads of a block run ahead of each other from one operation to the next, until a nop, a barrier
 * or an operation that synchronises them. So an operation that reads or writes what an earlier one
 * wrote, or writes what it read, needs a nop in between. */
#include "program/interval.h"
#include "program/ops.h"
#include "program/pass.h"

typedef struct access {
    plan_buffer buffer;
    uint64_t start, stop;
    bool write;
} access;

typedef ARRAY(access) access_list;

typedef struct block_state {
    interval_map maps[PLAN_BUFFERS]; /* since the last nop */
    access_list accesses;            /* of the operation at hand */
} block_state;

/* Packets bring flags of their own, on which their reader waits. (Those that a reduction reads
 * count: data may lie there as well.) */
static bool waits_for_flags(const plan_op *op, uint32_t source)
{
    return plan_source_is_packets(op, source) && !plan_op_reduces(op->kind);
}

static bool add_operand(const ops_place *place, const plan_op *op, const plan_operand *operand,
                        bool write, access_list *accesses)
{
    if (operand->place == PLAN_REMOTE)
        return true;
    /* A group's region is this rank's own as well. */
    plan_buffer buffer =
        plan_operand_where(place->plan, place->rank, place->block, op, operand).buffer;
    access added = {buffer, operand->index, operand->index + operand->size, write};
    return array_push(accesses, added);
}

static bool add_accesses(const ops_place *place, const plan_op *op, access_list *accesses)
{
    for (uint32_t i = 0; i < op->op_count; i++) {
        if (!add_accesses(place, &op->ops[i], accesses))
            return false;
    }
    for (uint32_t i = 0; i < op->source_count; i++) {
        if (!waits_for_flags(op, i) && !add_operand(place, op, &op->sources[i], false, accesses))
            return false;
    }
    for (uint32_t i = 0; i < op->destination_count; i++) {
        if (!plan_destination_is_packets(op, i) &&
            !add_operand(place, op, &op->destinations[i], true, accesses))
            return false;
    }
    return true;
}

static void forget(block_state *state)
{
    for (int buffer = 0; buffer < PLAN_BUFFERS; buffer++)
        interval_map_clear(&state->maps[buffer]);
}

static bool depends(const block_state *state)
{
    for (size_t i = 0; i < state->accesses.count; i++) {
        const access *at = &state->accesses.data[i];
        if (interval_map_conflicts(&state->maps[at->buffer], at->start, at->stop, at->write))
            return true;
    }
    return false;
}

static bool remember(block_state *state)
{
    for (size_t i = 0; i < state->accesses.count; i++) {
        const access *at = &state->accesses.data[i];
        if (!interval_map_add(&state->maps[at->buffer], at->start, at->stop, at->write))
            return false;
    }
    return true;
}

static bool mark_op(const ops_place *place, plan_op *op, block_state *state)
{
    if (op->kind == PLAN_NOP || op->kind == PLAN_BARRIER) {
        forget(state);
        return true;
    }
    state->accesses.count = 0;
    if (!add_accesses(place, op, &state->accesses))
        return false;
    if (depends(state)) {
        op->sync |= PLAN_SYNC_BEFORE;
        forget(state);
    }
    return remember(state);
}

banyan_status pass_dependencies(const ops_place *place, plan_op **ops, uint32_t *count)
{
    block_state state = {0};
    bool marked = true;
    for (uint32_t i = 0; i < *count && marked; i++)
        marked = mark_op(place, &(*ops)[i], &state);
    for (int buffer = 0; buffer < PLAN_BUFFERS; buffer++)
        interval_map_free(&state.maps[buffer]);
    array_free(&state.accesses);
    return marked ? ops_place_sync(place, ops, count) : BANYAN_ERR_NO_MEMORY;
}
