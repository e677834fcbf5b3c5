#include "program/compile/fuse.h"

#include <stdlib.h>

static bool fuse_sync_synchronises(const plan_op *op)
{
    return op->kind == PLAN_NOP || op->kind == PLAN_BARRIER;
}

/* True if the block's threads are synchronized before the operation's work, or after it. */
static bool begins_together(const plan_op *op)
{
    if (op->kind == PLAN_PIPELINE)
        return op->op_count > 0 && begins_together(&op->ops[0]);
    return fuse_sync_synchronises(op) || (op->sync & PLAN_SYNC_BEFORE);
}

static bool ends_together(const plan_op *op)
{
    if (op->kind == PLAN_PIPELINE)
        return op->op_count > 0 && ends_together(&op->ops[op->op_count - 1]);
    return fuse_sync_synchronises(op) || (op->sync & PLAN_SYNC_AFTER);
}

static bool drop_nop(plan_op *current, const plan_op *next)
{
    if (next->kind == PLAN_NOP && (fuse_sync_synchronises(current) ||
                                   (current->kind == PLAN_PIPELINE && ends_together(current))))
        return true;
    bool replaces =
        next->kind == PLAN_BARRIER || (next->kind == PLAN_PIPELINE && begins_together(next));
    if (current->kind == PLAN_NOP && replaces) {
        *current = *next;
        return true;
    }
    return false;
}

static int fuse_sync_compare_numbers(const void *left, const void *right)
{
    uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
    return (a > b) - (a < b);
}

/* The channels of an operation are in ascending order. */
static bool has_channel(const plan_op *op, const uint32_t *channel)
{
    return op->channel_count > 0 && bsearch(channel, op->channels, op->channel_count,
                                            sizeof *op->channels, fuse_sync_compare_numbers);
}

static bool fuse_sync_share_channel(const plan_op *a, const plan_op *b)
{
    for (uint32_t i = 0; i < b->channel_count; i++) {
        if (has_channel(a, &b->channels[i]))
            return true;
    }
    return false;
}

static bool fuse_sync_is_run(const plan_op *current, const plan_op *next)
{
    if (current->kind != next->kind || current->channel_type != next->channel_type)
        return false;
    switch (current->kind) {
    case PLAN_SIGNAL:
    case PLAN_RELAXED_SIGNAL:
    case PLAN_WAIT:
    case PLAN_RELAXED_WAIT:
        return !fuse_sync_share_channel(current, next);
    case PLAN_FLUSH:
    case PLAN_SEM_ACQUIRE:
    case PLAN_SEM_RELEASE:
        return true;
    default:
        return false;
    }
}

/* Sort the channels and remove duplicates. The first `ordered` are sorted, and so are the others.
 */
static void order_channels(plan_op *op, uint32_t ordered)
{
    if (ordered == 0 || ordered == op->channel_count ||
        op->channels[ordered - 1] < op->channels[ordered])
        return;
    qsort(op->channels, op->channel_count, sizeof *op->channels, fuse_sync_compare_numbers);
    uint32_t kept = 1;
    for (uint32_t i = 1; i < op->channel_count; i++) {
        if (op->channels[i] != op->channels[kept - 1])
            op->channels[kept++] = op->channels[i];
    }
    op->channel_count = kept;
}

banyan_status fuse_sync(fuse *with, plan_op *current, plan_op *next, bool *joined)
{
    *joined = drop_nop(current, next);
    if (*joined)
        return BANYAN_OK;
    if (fuse_sync_is_run(current, next)) {
        uint32_t ordered = current->channel_count;
        RETURN_IF_FAILED(fuse_add_channels(with, current, next));
        RETURN_IF_FAILED(fuse_add_semaphores(with, current, next));
        order_channels(current, ordered);
        current->sync |= next->sync;
        *joined = true;
        return BANYAN_OK;
    }
    if (begins_together(next))
        current->sync &= ~(unsigned)PLAN_SYNC_AFTER;
    if (ends_together(current))
        next->sync &= ~(unsigned)PLAN_SYNC_BEFORE;
    return BANYAN_OK;
}
