#include "execute/alike.h"

static bool is_put(const plan_op *op)
{
    return op->channel_type == PLAN_PORT && op->channel_count > 0 && op->kind != PLAN_WAIT &&
           op->kind != PLAN_RELAXED_WAIT && op->kind != PLAN_FLUSH;
}

/* The place of the thread block's first put, or signal, through the port channel of a later one. */
typedef struct place {
    uint32_t op, channel;
} place;

static place first_use(const plan_thread_block *block, uint32_t number)
{
    for (uint32_t i = 0; i < block->op_count; i++) {
        const plan_op *op = &block->ops[i];
        for (uint32_t k = 0; k < op->channel_count && is_put(op); k++) {
            if (op->channels[k] == number)
                return (place){i, k};
        }
    }
    return (place){block->op_count, 0};
}

/* Do both turn to their channels in the same order? */
static bool channels_alike(const plan_thread_block *a, const plan_thread_block *b)
{
    for (uint32_t i = 0; i < a->op_count; i++) {
        for (uint32_t k = 0; k < a->ops[i].channel_count && is_put(&a->ops[i]); k++) {
            place one = first_use(a, a->ops[i].channels[k]);
            place other = first_use(b, b->ops[i].channels[k]);
            if (one.op != other.op || one.channel != other.channel)
                return false;
        }
    }
    return true;
}

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
                !ops_alike(first->ops, block->ops, block->op_count) ||
                !channels_alike(first, block))
                return false;
        }
    }
    return true;
}
