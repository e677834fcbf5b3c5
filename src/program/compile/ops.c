#include "program/compile/pass.h"

static banyan_status rewrite_list(const ops_place *place, ops_rewrite rewrite, plan_op **ops,
                                  uint32_t *count)
{
    for (uint32_t i = 0; i < *count; i++) {
        plan_op *op = &(*ops)[i];
        if (op->kind == PLAN_PIPELINE)
            RETURN_IF_FAILED(rewrite_list(place, rewrite, &op->ops, &op->op_count));
    }
    return rewrite(place, ops, count);
}

/* Copy a block from the old plan to the new one and rewrite it, with `scratch` for intermediate
 * lists. */
static banyan_status rewrite_block(ops_place *place, const ops_rewrite *rewrites, size_t count,
                                   banyan_plan *made)
{
    plan_thread_block *block = place->block;
    RETURN_IF_FAILED(plan_copy_ops(place->plan, block->ops, block->op_count, &block->ops));
    for (size_t i = 0; i < count; i++)
        RETURN_IF_FAILED(rewrite_list(place, rewrites[i], &block->ops, &block->op_count));
    return plan_copy_ops(made, block->ops, block->op_count, &block->ops);
}

static banyan_status rewrite_blocks(const banyan_plan *before, const ops_rewrite *rewrites,
                                    size_t count, banyan_plan *made)
{
    banyan_status status = BANYAN_OK;
    for (int rank = 0; rank < made->rank_count; rank++) {
        plan_rank *of = &made->ranks[rank];
        for (uint32_t i = 0; i < of->block_count && status == BANYAN_OK; i++) {
            banyan_plan scratch = *made;
            scratch.memory = (arena){0};
            ops_place place = {before, &scratch, rank, &of->blocks[i]};
            status = rewrite_block(&place, rewrites, count, made);
            arena_free(&scratch.memory);
        }
    }
    return status;
}

banyan_status ops_rewrite_all(const banyan_plan *plan, const ops_rewrite *rewrites, size_t count,
                              banyan_plan **made)
{
    banyan_plan *frame;
    RETURN_IF_FAILED(plan_clone_frame(plan, &frame));
    banyan_status status = rewrite_blocks(plan, rewrites, count, frame);
    if (status != BANYAN_OK) {
        banyan_plan_destroy(frame);
        return status;
    }
    *made = frame;
    return BANYAN_OK;
}

bool ops_operand_equal(const plan_operand *a, const plan_operand *b)
{
    return a->place == b->place && a->buffer == b->buffer && a->reference == b->reference &&
           a->index == b->index && a->size == b->size;
}

bool ops_share_equal(const plan_op *a, const plan_op *b)
{
    return a->group_index == b->group_index && a->group_size == b->group_size;
}
