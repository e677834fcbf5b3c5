#include "execute/alike.h"

static bool ops_alike(const plan_op *a, const plan_op *b, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (a[i].kind != b[i].kind || a[i].channel_type != b[i].channel_type ||
            a[i].channel_count != b[i].channel_count || a[i].source_count != b[i].source_count ||
            a[i].destination_count != b[i].destination_count || a[i].op_count != b[i].op_count ||
            !ops_alike(a[i].ops, b[i].ops, a[i].op_count))
            return false;
    }
    return true;
}

bool plan_is_alike(const banyan_plan *plan)
{
    const plan_thread_block *first = NULL;
    for (int r = 0; r < plan->rank_count; r++) {
        const plan_rank *rank = &plan->ranks[r];
        if (rank->block_count == 0)
            return false;
        for (uint32_t b = 0; b < rank->block_count; b++) {
            const plan_thread_block *block = &rank->blocks[b];
            first = first ? first : block;
            if (block->op_count != first->op_count ||
                !ops_alike(first->ops, block->ops, block->op_count))
                return false;
        }
    }
    return true;
}
