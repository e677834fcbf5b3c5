#include "plan/op.h"

#define ULL(number) ((unsigned long long)(number))

static void op_text_add_operand(bytes_writer *text, const banyan_plan *plan, int rank,
                                const plan_thread_block *block, const plan_op *op,
                                const plan_operand *operand)
{
    plan_where where = plan_operand_where(plan, rank, block, op, operand);
    text_print(text, "%s[%llu", plan_buffer_name(where.buffer), ULL(operand->index));
    if (operand->size != 1)
        text_print(text, "..%llu)", ULL(operand->index + operand->size));
    else
        text_add(text, "]");
    if (operand->place == PLAN_REMOTE)
        text_print(text, "@%d", where.rank);
    if (operand->place != PLAN_GROUP)
        return;
    const plan_switch *group = plan_operand_group(plan, rank, block, operand);
    text_add(text, "@{");
    for (int i = 0; i < group->rank_count; i++)
        text_print(text, "%s%d", i > 0 ? "," : "", group->ranks[i]);
    text_print(text, "} by switch channel %u", block->channels[PLAN_SWITCH][operand->reference]);
}

static void op_text_add_operands(bytes_writer *text, const banyan_plan *plan, int rank,
                                 const plan_thread_block *block, const plan_op *op,
                                 const plan_operand *operands, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        text_add(text, i > 0 ? ", " : " ");
        op_text_add_operand(text, plan, rank, block, op, &operands[i]);
    }
}

/* List channels by the rank's own numbers, with their peers. */
static void op_text_add_channels(bytes_writer *text, const plan_rank *rank,
                                 const plan_thread_block *block, const plan_op *op)
{
    text_add(text, op->source_count > 0 ? " by" : "");
    for (uint32_t i = 0; i < op->channel_count; i++) {
        uint32_t channel = plan_channel_of(block, op, op->channels[i]);
        text_print(text, "%s channel %u to %d", i > 0 ? "," : "", channel,
                   rank->peers[op->channel_type][channel]);
    }
}

/* Seen only before the compiler has turned them into nops. */
static const char *const sync_words[] = {[PLAN_SYNC_BEFORE] = ", sync before",
                                         [PLAN_SYNC_AFTER] = ", sync after",
                                         [PLAN_SYNC_BEFORE | PLAN_SYNC_AFTER] = ", sync both",
                                         [0] = ""};

void op_text_add(bytes_writer *text, const banyan_plan *plan, int rank,
                 const plan_thread_block *block, const plan_op *op)
{
    text_add(text, plan_op_name(op->kind));
    if (op->channel_type == PLAN_MEMORY || op->channel_type == PLAN_PORT)
        text_print(text, " %s", plan_channel_name(op->channel_type));
    if (plan_op_reduces(op->kind))
        text_print(text, " %s", banyan_reduce_op_name(op->reduce_op));
    op_text_add_operands(text, plan, rank, block, op, op->sources, op->source_count);
    if (op->destination_count > 0)
        text_add(text, " ->");
    op_text_add_operands(text, plan, rank, block, op, op->destinations, op->destination_count);
    if (op->channel_count > 0)
        op_text_add_channels(text, &plan->ranks[rank], block, op);
    for (uint32_t i = 0; i < op->semaphore_count; i++)
        text_print(text, "%s %u", i > 0 ? "," : " semaphore", op->semaphores[i]);
    if (op->kind == PLAN_BARRIER)
        text_print(text, " %u of %u thread blocks", op->barrier, op->barrier_members);
    if (op->kind == PLAN_PIPELINE)
        text_print(text, " over %llu chunk%s in units of %llu bytes", ULL(op->loop_chunks),
                   op->loop_chunks == 1 ? "" : "s", ULL(op->unit_bytes));
    if (op->group_size > 0)
        text_print(text, ", share %u of %u", op->group_index, op->group_size);
    text_add(text, sync_words[op->sync % 4]);
}
