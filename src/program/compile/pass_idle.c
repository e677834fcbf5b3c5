/* Remove nops that separate nothing. Between two synchronization points of a thread block's
 * threads, its operations overlap. A nop may go if the operations before it, back to the last
 * synchronization point, may overlap the operations after it, up to the next one. That holds in
 * three cases:
 * - One side is empty.
 * - The earlier operations only signal, and the later ones do not use the signalled objects.
 * - The later ones only wait for signals, which changes nothing before the next synchronization
 *   point. */
#include "program/compile/pass.h"

static bool pass_idle_joins(const plan_op *op)
{
    return op->kind == PLAN_NOP || op->kind == PLAN_BARRIER;
}

static bool pass_idle_signals(const plan_op *op)
{
    return op->kind == PLAN_SEM_RELEASE ||
           (op->channel_type == PLAN_MEMORY &&
            (op->kind == PLAN_SIGNAL || op->kind == PLAN_RELAXED_SIGNAL));
}

static bool pass_idle_is_wait(const plan_op *op)
{
    return op->kind == PLAN_WAIT || op->kind == PLAN_RELAXED_WAIT;
}

static bool have_common(const uint32_t *a, uint32_t a_count, const uint32_t *b, uint32_t b_count)
{
    for (uint32_t i = 0; i < a_count; i++) {
        for (uint32_t k = 0; k < b_count; k++) {
            if (a[i] == b[k])
                return true;
        }
    }
    return false;
}

static bool pass_idle_share_channel(const plan_op *a, const plan_op *b)
{
    return a->channel_type == b->channel_type &&
           have_common(a->channels, a->channel_count, b->channels, b->channel_count);
}

/* The operations between two synchronization points. */
typedef struct stretch {
    const plan_op *ops;
    uint32_t count;
    bool open; /* it is unknown which operations precede the first one, or follow the last one */
} stretch;

/* True if unsynchronized threads would signal through one channel, or use one semaphore. */
static bool signal_through_one(const plan_op *a, const plan_op *b)
{
    return b->kind == PLAN_PIPELINE || (pass_idle_signals(b) && pass_idle_share_channel(a, b)) ||
           have_common(a->semaphores, a->semaphore_count, b->semaphores, b->semaphore_count);
}

static bool only_signals(const stretch *before, const stretch *after)
{
    for (uint32_t i = 0; i < before->count; i++) {
        if (!pass_idle_signals(&before->ops[i]))
            return false;
        for (uint32_t k = 0; k < after->count; k++) {
            if (signal_through_one(&before->ops[i], &after->ops[k]))
                return false;
        }
    }
    return !before->open && (!after->open || before->count == 0);
}

/* True if no other thread block waits there: then taking a signal earlier affects nobody. */
static bool waits_alone(const ops_place *place, const plan_op *op)
{
    const plan_rank *rank = &place->before->ranks[place->rank];
    for (uint32_t i = 0; i < op->channel_count; i++) {
        uint32_t channel = place->block->channels[op->channel_type][op->channels[i]];
        for (uint32_t b = 0; b < rank->block_count; b++) {
            const plan_thread_block *other = &rank->blocks[b];
            if (other->id != place->block->id &&
                have_common(&channel, 1, other->channels[op->channel_type],
                            other->channel_count[op->channel_type]))
                return false;
        }
    }
    return true;
}

static bool wait_at_one(const plan_op *a, const plan_op *b)
{
    return a->kind == PLAN_PIPELINE || (pass_idle_is_wait(a) && pass_idle_share_channel(a, b));
}

static bool only_waits(const ops_place *place, const stretch *before, const stretch *after)
{
    for (uint32_t k = 0; k < after->count; k++) {
        if (!pass_idle_is_wait(&after->ops[k]) || !waits_alone(place, &after->ops[k]))
            return false;
        for (uint32_t i = 0; i < before->count; i++) {
            if (wait_at_one(&before->ops[i], &after->ops[k]))
                return false;
        }
    }
    return !after->open && (!before->open || after->count == 0);
}

static bool may_overlap(const ops_place *place, const stretch *before, const stretch *after)
{
    return only_signals(before, after) || only_waits(place, before, after);
}

/* Return the operations up to the next synchronization point; open if there is none. */
static stretch stretch_from(const plan_op *ops, uint32_t count)
{
    uint32_t i = 0;
    while (i < count && !pass_idle_joins(&ops[i]))
        i++;
    return (stretch){ops, i, i == count};
}

static stretch stretch_to(const plan_op *ops, uint32_t count)
{
    uint32_t i = count;
    while (i > 0 && !pass_idle_joins(&ops[i - 1]))
        i--;
    return (stretch){ops + i, count - i, i == 0};
}

/* Drop the nop that begins a body. It also separates the body's end from its beginning. */
static void drop_first_of_body(const ops_place *place, plan_op *loop)
{
    if (loop->op_count < 2 || loop->ops[0].kind != PLAN_NOP)
        return;
    stretch end = stretch_to(loop->ops + 1, loop->op_count - 1);
    stretch begin = stretch_from(loop->ops + 1, loop->op_count - 1);
    if (!end.open && !begin.open && may_overlap(place, &end, &begin)) {
        loop->ops++;
        loop->op_count--;
    }
}

static void drop_last_of_body(const ops_place *place, plan_op *loop)
{
    uint32_t last = loop->op_count - 1;
    if (loop->op_count < 2 || loop->ops[last].kind != PLAN_NOP)
        return;
    stretch end = stretch_to(loop->ops, last);
    stretch begin = stretch_from(loop->ops, last);
    if (!end.open && !begin.open && may_overlap(place, &end, &begin))
        loop->op_count--;
}

banyan_status pass_idle(const ops_place *place, plan_op **ops, uint32_t *count)
{
    /* The threads of a block are synchronized when it begins and when it ends. */
    bool body = ops != &place->block->ops;
    plan_op *list = *ops;
    stretch before = {list, 0, body};
    uint32_t kept = 0;
    for (uint32_t i = 0; i < *count; i++) {
        plan_op next = list[i];
        if (next.kind == PLAN_NOP || next.kind == PLAN_PIPELINE) {
            stretch after = stretch_from(&list[i + 1], *count - i - 1);
            after.open &= body;
            bool loop = next.kind == PLAN_PIPELINE;
            /* The ends of a body may need separation from what is before and after the loop. */
            if (loop && before.count == 0 && !before.open)
                drop_first_of_body(place, &next);
            if (loop && after.count == 0 && !after.open)
                drop_last_of_body(place, &next);
            if (!loop && may_overlap(place, &before, &after))
                continue;
        }
        list[kept++] = next;
        before.count++;
        if (pass_idle_joins(&next))
            before = (stretch){&list[kept], 0, false};
    }
    *count = kept;
    return BANYAN_OK;
}
