/* Divide operations that have too many channels, and keep the order of posts. */
#include "plan/executor/mscclpp.h"

#include "plan/op.h"

/* State while a list is rewritten. */
typedef struct splitter {
    mscclpp_ops made;
    mscclpp_posts posts;
} splitter;

static bool split_add(splitter *to, const plan_op *op)
{
    static const plan_op nop = {.kind = PLAN_NOP};
    if (mscclpp_posts_conflict(&to->posts, op) < op->channel_count) {
        if (!array_push(&to->made, nop))
            return false;
        mscclpp_posts_note(&to->posts, &nop);
    }
    mscclpp_posts_note(&to->posts, op);
    plan_op kept = *op;
    /* Memory channels do not matter to operations that move data. */
    if (op->source_count > 0 && op->channel_type == PLAN_MEMORY)
        kept.channel_count = 0;
    return array_push(&to->made, kept);
}

/* Return how many pairs or channels, from the `first` on, one operation can have. */
static uint32_t split_count(const plan_op *op, uint32_t first, uint32_t all)
{
    uint32_t count = 1;
    bool signals = plan_op_form_of(op->kind)->signals;
    while (first + count < all && count < MSCCLPP_OP_CHANNELS) {
        uint32_t next = first + count;
        for (uint32_t k = first; op->channel_type == PLAN_PORT && signals && k < next; k++) {
            if (op->channels[k] == op->channels[next])
                return count;
        }
        /* Puts of one operation all begin in the first one's buffer. */
        if (op->channel_type == PLAN_MEMORY && op->source_count > next &&
            op->sources[next].buffer != op->sources[first].buffer)
            return count;
        count++;
    }
    return count;
}

/* In release 0.9.0 a put with signal and flush does not flush, but a flush does. */
static bool split_add_flush(splitter *to, const plan_op *after)
{
    plan_op flush = {.kind = PLAN_FLUSH,
                     .channel_type = PLAN_PORT,
                     .channels = after->channels,
                     .channel_count = after->channel_count,
                     .line = after->line};
    return split_add(to, &flush);
}

static bool split_op(splitter *to, const plan_op *op)
{
    bool pairs = plan_op_is_pairs(op->kind);
    uint32_t all = pairs ? op->source_count : op->channel_count;
    if (!pairs && op->source_count > 0)
        return split_add(to, op);
    for (uint32_t first = 0; first < all;) {
        plan_op part = *op;
        uint32_t count = split_count(op, first, all);
        if (pairs) {
            part.sources += first;
            part.destinations += first;
            part.source_count = part.destination_count = count;
        }
        if (!pairs || op->channel_type == PLAN_PORT) {
            part.channels += first;
            part.channel_count = count;
        }
        bool flushes = part.kind == PLAN_PUT_WITH_SIGNAL_AND_FLUSH;
        if (flushes)
            part.kind = PLAN_PUT_WITH_SIGNAL;
        if (!split_add(to, &part) || (flushes && !split_add_flush(to, &part)))
            return false;
        first += count;
    }
    return all > 0 || split_add(to, op);
}

static bool posts_to_ports(const plan_op *loop)
{
    for (uint32_t i = 0; i < loop->op_count; i++) {
        if (loop->ops[i].channel_type == PLAN_PORT)
            return true;
    }
    return false;
}

/* Threads of a loop with port channels synchronize before every iteration. */
static banyan_status split_list(banyan_plan *plan, const plan_thread_block *block, plan_op **ops,
                                uint32_t *count, bool synchronize)
{
    splitter to = {.made = {0}};
    RETURN_IF_FAILED(mscclpp_posts_make(block, &to.posts));
    bool added = !synchronize || array_push(&to.made, (plan_op){.kind = PLAN_NOP});
    for (uint32_t i = 0; i < *count && added; i++)
        added = split_op(&to, &(*ops)[i]);
    mscclpp_posts_free(&to.posts);
    if (added)
        return mscclpp_ops_store(plan, &to.made, ops, count);
    array_free(&to.made);
    return BANYAN_ERR_NO_MEMORY;
}

static banyan_status split_block(banyan_plan *plan, plan_thread_block *block)
{
    for (uint32_t i = 0; i < block->op_count; i++) {
        plan_op *op = &block->ops[i];
        if (op->kind != PLAN_PIPELINE)
            continue;
        bool synced = op->op_count > 0 && op->ops[0].kind == PLAN_NOP;
        RETURN_IF_FAILED(
            split_list(plan, block, &op->ops, &op->op_count, posts_to_ports(op) && !synced));
    }
    return split_list(plan, block, &block->ops, &block->op_count, false);
}

banyan_status mscclpp_split(banyan_plan *plan)
{
    for (int r = 0; r < plan->rank_count; r++) {
        for (uint32_t b = 0; b < plan->ranks[r].block_count; b++)
            RETURN_IF_FAILED(split_block(plan, &plan->ranks[r].blocks[b]));
    }
    return BANYAN_OK;
}
