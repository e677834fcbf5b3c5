/* Make one operation of neighbours on consecutive chunks: MSCCL++'s executor has room for few, and
 * a proxy takes as long for a short put as for a long one. */
#include "plan/executor/mscclpp.h"

static bool continues(const plan_operand *first, const plan_operand *second)
{
    return first->place == second->place && first->buffer == second->buffer &&
           first->reference == second->reference && first->index + first->size == second->index;
}

static bool pairs_join(plan_op_kind kind)
{
    return kind == PLAN_PUT || kind == PLAN_GET || kind == PLAN_PUT_PACKET;
}

/* Join the last pair to the one before it, as often as that is possible. */
static void join_pairs(plan_op *op)
{
    uint32_t kept = 0;
    bool by_port = op->channel_type == PLAN_PORT;
    for (uint32_t i = 1; i < op->source_count; i++) {
        if (continues(&op->sources[kept], &op->sources[i]) &&
            continues(&op->destinations[kept], &op->destinations[i]) &&
            (!by_port || op->channels[kept] == op->channels[i])) {
            op->sources[kept].size += op->sources[i].size;
            op->destinations[kept].size += op->destinations[i].size;
            continue;
        }
        kept++;
        op->sources[kept] = op->sources[i];
        op->destinations[kept] = op->destinations[i];
        if (by_port)
            op->channels[kept] = op->channels[i];
    }
    op->source_count = op->destination_count = kept + 1;
    if (by_port)
        op->channel_count = kept + 1;
}

/* True if the second operation does the same to the chunks that follow the first one's. */
static bool join_continues(const plan_op *first, const plan_op *second)
{
    if (first->kind != second->kind || first->source_count == 0 || plan_op_is_pairs(first->kind) ||
        first->channel_type != second->channel_type || first->reduce_op != second->reduce_op ||
        first->source_count != second->source_count ||
        first->destination_count != second->destination_count || first->group_size > 1 ||
        second->group_size > 1)
        return false;
    for (uint32_t i = 0; i < plan_operand_count(first); i++) {
        if (!continues(plan_operand_at(first, i), plan_operand_at(second, i)))
            return false;
    }
    return true;
}

/* A put, and a put with signal of the next chunks by the same channel. */
static bool ends_with_signal(const plan_op *first, const plan_op *second)
{
    return first->kind == PLAN_PUT && first->channel_type == PLAN_PORT &&
           (second->kind == PLAN_PUT_WITH_SIGNAL ||
            second->kind == PLAN_PUT_WITH_SIGNAL_AND_FLUSH) &&
           first->source_count == 1 && second->source_count == 1 && first->group_size <= 1 &&
           second->group_size <= 1 && first->channels[0] == second->channels[0] &&
           continues(first->sources, second->sources) &&
           continues(first->destinations, second->destinations);
}

static void extend(plan_op *first, const plan_op *second)
{
    for (uint32_t i = 0; i < first->source_count; i++)
        first->sources[i].size += second->sources[i].size;
    for (uint32_t i = 0; i < first->destination_count; i++)
        first->destinations[i].size += second->destinations[i].size;
    first->kind = second->kind;
}

/* True if the two buffers are one memory, with chunks at the same places. */
static bool is_same_buffer(const banyan_plan *plan, plan_buffer a, plan_buffer b)
{
    bool shared = plan->in_place && plan->collective != BANYAN_ALLGATHER &&
                  plan->collective != BANYAN_REDUCESCATTER;
    return a == b || (shared && a != PLAN_SCRATCH && b != PLAN_SCRATCH);
}

/* True if the first operation reduces over a group into a place of this rank, and the second stores
 * that place to the same place of a group: then one operation can do both. */
static bool stores_reduction(const banyan_plan *plan, int rank, const plan_thread_block *block,
                             const plan_op *first, const plan_op *second)
{
    if (first->kind != PLAN_GROUP_LOAD_REDUCE || second->kind != PLAN_GROUP_STORE ||
        first->group_index != second->group_index || first->group_size != second->group_size)
        return false;
    const plan_operand *result = first->destinations, *stored = second->sources;
    const plan_operand *to = second->destinations;
    const plan_switch *group = plan_operand_group(plan, rank, block, to);
    bool member = false;
    for (int i = 0; i < group->rank_count; i++)
        member |= group->ranks[i] == rank;
    return member && is_same_buffer(plan, result->buffer, stored->buffer) &&
           is_same_buffer(plan, result->buffer, group->buffer) && result->index == stored->index &&
           result->size == stored->size && result->index == to->index;
}

/* Return the number of operations, from the `i`-th on, that one operation replaces. */
static uint32_t join_reduction(const banyan_plan *plan, int rank, const plan_thread_block *block,
                               uint32_t i, plan_op *joined)
{
    const plan_op *ops = block->ops;
    uint32_t next = i + 1 < block->op_count && ops[i + 1].kind == PLAN_NOP ? i + 2 : i + 1;
    if (next >= block->op_count || !stores_reduction(plan, rank, block, &ops[i], &ops[next]))
        return 1;
    joined->kind = PLAN_GROUP_LOAD_REDUCE_STORE;
    joined->destinations = ops[next].destinations;
    return next + 1 - i;
}

/* Loops stay: their operations move as many chunks as the loop steps through. */
static void join_block(const banyan_plan *plan, int rank, plan_thread_block *block)
{
    uint32_t kept = 0, taken;
    for (uint32_t i = 0; i < block->op_count; i += taken) {
        plan_op op = block->ops[i];
        taken = join_reduction(plan, rank, block, i, &op);
        if (pairs_join(op.kind) && op.group_size <= 1)
            join_pairs(&op);
        plan_op *last = kept > 0 ? &block->ops[kept - 1] : NULL;
        if (last && (join_continues(last, &op) || ends_with_signal(last, &op)))
            extend(last, &op);
        else
            block->ops[kept++] = op;
    }
    block->op_count = kept;
}

banyan_status mscclpp_join(banyan_plan *plan)
{
    for (int r = 0; r < plan->rank_count; r++) {
        for (uint32_t b = 0; b < plan->ranks[r].block_count; b++)
            join_block(plan, r, &plan->ranks[r].blocks[b]);
    }
    return BANYAN_OK;
}
