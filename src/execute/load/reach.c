#include "execute/load/reach.h"

#include <stdlib.h>

#include "execute/specialize/step.h"

struct walk {
    const banyan_plan *plan;
    const plan_thread_block *block;
    int rank;
    reach *reaches;
};

static void load_reach_note(struct walk *walk, int owner, plan_buffer buffer, bool written)
{
    reach *of = &walk->reaches[step_base(owner, buffer)];
    of->used = true;
    of->read |= !written;
    of->written |= written;
    of->peers |= owner != walk->rank;
}

static void note_operand(struct walk *walk, const plan_op *op, const plan_operand *operand,
                         bool written)
{
    if (operand->place != PLAN_GROUP) {
        plan_where where = plan_operand_where(walk->plan, walk->rank, walk->block, op, operand);
        load_reach_note(walk, where.rank, where.buffer, written);
        return;
    }
    const plan_switch *group = step_group(walk->plan, walk->rank, walk->block, operand);
    for (int i = 0; i < group->rank_count; i++)
        load_reach_note(walk, group->ranks[i], group->buffer, written);
}

static void load_reach_note_ops(struct walk *walk, const plan_op *ops, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        const plan_op *op = &ops[i];
        for (uint32_t k = 0; k < op->source_count; k++)
            note_operand(walk, op, &op->sources[k], false);
        for (uint32_t k = 0; k < op->destination_count; k++)
            note_operand(walk, op, &op->destinations[k], true);
        load_reach_note_ops(walk, op->ops, op->op_count);
    }
}

reach *reach_find(const banyan_plan *plan)
{
    size_t bytes = (size_t)plan->rank_count * PLAN_BUFFERS * sizeof(reach);
    struct walk walk = {.plan = plan, .reaches = calloc(1, bytes)};
    if (!walk.reaches) {
        error_no_memory(bytes, "the reach of a plan's buffers");
        return NULL;
    }
    for (walk.rank = 0; walk.rank < plan->rank_count; walk.rank++) {
        const plan_rank *rank = &plan->ranks[walk.rank];
        for (uint32_t i = 0; i < rank->block_count; i++) {
            walk.block = &rank->blocks[i];
            load_reach_note_ops(&walk, walk.block->ops, walk.block->op_count);
        }
    }
    return walk.reaches;
}
