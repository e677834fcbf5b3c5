#include <string.h>

#include "plan/plan.h"

/* State of a copy; nothing is copied after out of memory. */
typedef struct copier {
    banyan_plan *plan;
    bool with_ops, failed;
} copier;

static void *clone_copy(copier *to, const void *things, size_t count, size_t bytes)
{
    if (to->failed || !things)
        return NULL;
    void *taken = plan_take(to->plan, count, bytes);
    if (!taken)
        to->failed = true;
    else if (count > 0)
        memcpy(taken, things, count * bytes);
    return taken;
}

#define COPY(to, things, count) ((things) = clone_copy((to), (things), (count), sizeof *(things)))

static const char *copy_text(copier *to, const char *text)
{
    return clone_copy(to, text, strlen(text) + 1, 1);
}

static void clone_copy_ops(copier *to, plan_op **ops, uint32_t count)
{
    COPY(to, *ops, count);
    for (uint32_t i = 0; i < count && !to->failed; i++) {
        plan_op *op = &(*ops)[i];
        COPY(to, op->sources, op->source_count);
        COPY(to, op->destinations, op->destination_count);
        COPY(to, op->channels, op->channel_count);
        COPY(to, op->semaphores, op->semaphore_count);
        if (op->op_count > 0)
            clone_copy_ops(to, &op->ops, op->op_count);
    }
}

static void clone_copy_block(copier *to, plan_thread_block *block)
{
    if (to->with_ops)
        clone_copy_ops(to, &block->ops, block->op_count);
    for (int type = 0; type < PLAN_CHANNEL_TYPES; type++) {
        COPY(to, block->channels[type], block->channel_count[type]);
        COPY(to, block->remote_buffers[type], block->remote_buffer_count[type]);
    }
}

static void copy_rank(copier *to, plan_rank *rank)
{
    COPY(to, rank->blocks, rank->block_count);
    for (uint32_t i = 0; i < rank->block_count && !to->failed; i++)
        clone_copy_block(to, &rank->blocks[i]);
    COPY(to, rank->peers[PLAN_MEMORY], rank->channel_count[PLAN_MEMORY]);
    COPY(to, rank->peers[PLAN_PORT], rank->channel_count[PLAN_PORT]);
    COPY(to, rank->switches, rank->channel_count[PLAN_SWITCH]);
    for (uint32_t i = 0; i < rank->channel_count[PLAN_SWITCH] && !to->failed; i++)
        COPY(to, rank->switches[i].ranks, (size_t)rank->switches[i].rank_count);
    COPY(to, rank->remote_buffers, rank->remote_buffer_count);
    COPY(to, rank->semaphores, rank->semaphore_count);
}

static void copy_expected(copier *to, const banyan_plan *plan)
{
    if (COPY(to, to->plan->expected, (size_t)plan->rank_count) == NULL)
        return;
    for (int r = 0; r < plan->rank_count && !to->failed; r++) {
        plan_expected *chunks = COPY(to, to->plan->expected[r], plan->ranks[r].chunks[PLAN_OUTPUT]);
        for (uint64_t i = 0; chunks && i < plan->ranks[r].chunks[PLAN_OUTPUT] && !to->failed; i++)
            COPY(to, chunks[i].contributions, chunks[i].count);
    }
}

static void clone_copy_all(copier *to, const banyan_plan *plan)
{
    banyan_plan *made = to->plan;
    made->name = copy_text(to, plan->name);
    made->collective_name = copy_text(to, plan->collective_name);
    COPY(to, made->ranks, (size_t)plan->rank_count);
    for (int i = 0; i < plan->rank_count && !to->failed; i++)
        copy_rank(to, &made->ranks[i]);
    copy_expected(to, plan);
    COPY(to, made->tags, plan->tag_count);
    for (size_t i = 0; i < plan->tag_count && !to->failed; i++) {
        made->tags[i].key = copy_text(to, made->tags[i].key);
        made->tags[i].value = copy_text(to, made->tags[i].value);
    }
    COPY(to, made->lines, plan->line_count);
    for (size_t i = 0; i < plan->line_count && !to->failed; i++)
        made->lines[i].file = copy_text(to, made->lines[i].file);
}

static banyan_status clone_plan(const banyan_plan *plan, bool with_ops, banyan_plan **clone)
{
    banyan_plan *made = plan_create(1);
    if (!made)
        return BANYAN_ERR_NO_MEMORY;
    arena memory = made->memory;
    *made = *plan;
    made->memory = memory;
    copier to = {.plan = made, .with_ops = with_ops};
    clone_copy_all(&to, plan);
    if (to.failed) {
        banyan_plan_destroy(made);
        return BANYAN_ERR_NO_MEMORY;
    }
    *clone = made;
    return BANYAN_OK;
}

banyan_status plan_clone(const banyan_plan *plan, banyan_plan **clone)
{
    return clone_plan(plan, true, clone);
}

banyan_status plan_clone_frame(const banyan_plan *plan, banyan_plan **clone)
{
    return clone_plan(plan, false, clone);
}

banyan_status plan_copy_ops(banyan_plan *plan, const plan_op *ops, uint32_t count, plan_op **copied)
{
    copier to = {.plan = plan, .with_ops = true};
    plan_op *list = (plan_op *)(uintptr_t)ops;
    clone_copy_ops(&to, &list, count);
    if (to.failed)
        return BANYAN_ERR_NO_MEMORY;
    *copied = list;
    return BANYAN_OK;
}
