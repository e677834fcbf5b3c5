/* Continue long lists of operations in further thread blocks: the executor has room for few
 * operations in a block.
 *
 * All ranks divide a block at the same places, where every signal that was given has been waited
 * for. So each part has channels of its own. A semaphore lets it begin where the one before it
 * ends. */
#include <stdlib.h>

#include "core/error.h"
#include "plan/executor/mscclpp.h"
#include "plan/op.h"

/* A part begins with an acquire and a nop, and ends with a nop and a release. */
#define CONTINUE_AROUND 4
#define CONTINUE_MOST (MSCCLPP_BLOCK_OPS - CONTINUE_AROUND)

/* A block that is divided, on all ranks. */
typedef struct continuation {
    banyan_plan *plan;
    uint32_t block;
    int64_t **open; /* by rank and memory channel: signals given to it and not waited for yet */
} continuation;

static plan_thread_block *continue_block(const continuation *all, int rank)
{
    return &all->plan->ranks[rank].blocks[all->block];
}

/* True if the block signals by memory channels alone, which no other block uses, and has neither
 * loops nor barriers. */
static bool continue_is_simple(const continuation *all, int r)
{
    const plan_rank *rank = &all->plan->ranks[r];
    const plan_thread_block *block = continue_block(all, r);
    for (uint32_t i = 0; i < block->op_count; i++) {
        const plan_op *op = &block->ops[i];
        if (op->kind == PLAN_PIPELINE || op->kind == PLAN_BARRIER ||
            op->channel_type == PLAN_PORT || op->channel_type == PLAN_SWITCH)
            return false;
    }
    for (uint32_t i = 0; i < block->channel_count[PLAN_MEMORY]; i++) {
        int peer;
        uint32_t channel = block->channels[PLAN_MEMORY][i], back;
        if (!mscclpp_owns_channel(rank, block, PLAN_MEMORY, channel) ||
            !plan_channel_pair(all->plan, r, PLAN_MEMORY, channel, &peer, &back) || peer == r ||
            !mscclpp_owns_channel(&all->plan->ranks[peer], continue_block(all, peer), PLAN_MEMORY,
                                  back))
            return false;
    }
    return true;
}

static bool continue_applies(const continuation *all)
{
    const banyan_plan *plan = all->plan;
    for (int r = 0; r < plan->rank_count; r++) {
        if (all->block >= plan->ranks[r].block_count ||
            continue_block(all, r)->op_count != continue_block(all, 0)->op_count)
            return false;
    }
    for (int r = 0; r < plan->rank_count; r++) {
        if (!continue_is_simple(all, r))
            return false;
    }
    return continue_block(all, 0)->op_count > MSCCLPP_BLOCK_OPS;
}

static void continue_count(continuation *all, int r, const plan_op *op)
{
    bool gives = plan_op_form_of(op->kind)->signals;
    bool takes = op->kind == PLAN_WAIT || op->kind == PLAN_RELAXED_WAIT;
    for (uint32_t i = 0; (gives || takes) && i < op->channel_count; i++) {
        int peer;
        uint32_t channel = plan_channel_of(continue_block(all, r), op, op->channels[i]), back;
        if (takes)
            all->open[r][channel]--;
        else if (plan_channel_pair(all->plan, r, PLAN_MEMORY, channel, &peer, &back))
            all->open[peer][back]++;
    }
}

static bool continue_is_balanced(const continuation *all)
{
    for (int r = 0; r < all->plan->rank_count; r++) {
        for (uint32_t c = 0; c < all->plan->ranks[r].channel_count[PLAN_MEMORY]; c++) {
            if (all->open[r][c] != 0)
                return false;
        }
    }
    return true;
}

/* Return the last place, at most CONTINUE_MOST operations from `first` on, where all ranks can
 * divide the block; `first` if there is none. */
static uint32_t continue_find_end(continuation *all, uint32_t first)
{
    uint32_t found = first, count = continue_block(all, 0)->op_count;
    for (uint32_t i = first; i < count && i - first < CONTINUE_MOST; i++) {
        for (int r = 0; r < all->plan->rank_count; r++)
            continue_count(all, r, &continue_block(all, r)->ops[i]);
        if (continue_is_balanced(all))
            found = i + 1;
    }
    /* Begin the next search at that place. */
    for (int r = 0; r < all->plan->rank_count; r++) {
        for (uint32_t c = 0; c < all->plan->ranks[r].channel_count[PLAN_MEMORY]; c++)
            all->open[r][c] = 0;
    }
    return found;
}

static bool continue_add(banyan_plan *plan, mscclpp_ops *to, plan_op_kind kind, uint32_t semaphore)
{
    plan_op op = {.kind = kind, .semaphore_count = 1};
    op.semaphores = plan_take(plan, 1, sizeof *op.semaphores);
    if (!op.semaphores)
        return false;
    op.semaphores[0] = semaphore;
    return array_push(to, op);
}

static bool continue_fill(banyan_plan *plan, const plan_thread_block *whole, uint32_t first,
                          uint32_t end, uint32_t semaphore, mscclpp_ops *made)
{
    static const plan_op nop = {.kind = PLAN_NOP};
    if (first > 0 &&
        (!continue_add(plan, made, PLAN_SEM_ACQUIRE, semaphore - 1) || !array_push(made, nop)))
        return false;
    for (uint32_t i = first; i < end; i++) {
        if (!array_push(made, whole->ops[i]))
            return false;
    }
    return end == whole->op_count ||
           (array_push(made, nop) && continue_add(plan, made, PLAN_SEM_RELEASE, semaphore));
}

static banyan_status continue_write(banyan_plan *plan, const plan_thread_block *whole,
                                    uint32_t first, uint32_t end, uint32_t semaphore,
                                    plan_thread_block *to)
{
    mscclpp_ops made = {0};
    if (continue_fill(plan, whole, first, end, semaphore, &made))
        return mscclpp_ops_store(plan, &made, &to->ops, &to->op_count);
    array_free(&made);
    return BANYAN_ERR_NO_MEMORY;
}

/* Give the last block of each rank, a copy of the divided one, channels of its own. */
static banyan_status continue_add_channels(continuation *all)
{
    banyan_plan *plan = all->plan;
    for (int r = 0; r < plan->rank_count; r++) {
        plan_thread_block *block = &plan->ranks[r].blocks[plan->ranks[r].block_count - 1];
        uint32_t count = block->channel_count[PLAN_MEMORY];
        block->channels[PLAN_MEMORY] = plan_take(plan, count, sizeof(uint32_t));
        if (!block->channels[PLAN_MEMORY])
            return BANYAN_ERR_NO_MEMORY;
    }
    for (int r = 0; r < plan->rank_count; r++) {
        const plan_thread_block *old = continue_block(all, r);
        plan_thread_block *new = &plan->ranks[r].blocks[plan->ranks[r].block_count - 1];
        for (uint32_t i = 0; i < old->channel_count[PLAN_MEMORY]; i++) {
            int peer;
            uint32_t back, mine, theirs;
            if (!plan_channel_pair(plan, r, PLAN_MEMORY, old->channels[PLAN_MEMORY][i], &peer,
                                   &back) ||
                peer < r)
                continue;
            const plan_thread_block *far = continue_block(all, peer);
            plan_rank *other = &plan->ranks[peer];
            if (!mscclpp_add_pair(plan, PLAN_MEMORY, r, peer, &mine, &theirs))
                return BANYAN_ERR_NO_MEMORY;
            new->channels[PLAN_MEMORY][i] = mine;
            for (uint32_t k = 0; k < far->channel_count[PLAN_MEMORY]; k++) {
                if (far->channels[PLAN_MEMORY][k] == back)
                    other->blocks[other->block_count - 1].channels[PLAN_MEMORY][k] = theirs;
            }
        }
    }
    return BANYAN_OK;
}

/* Append a copy of the divided block's frame, and a semaphore. */
static banyan_status continue_grow(banyan_plan *plan, plan_rank *rank, const plan_thread_block *of)
{
    plan_thread_block *blocks = plan_take(plan, rank->block_count + 1, sizeof *blocks);
    uint64_t *semaphores = plan_take(plan, rank->semaphore_count + 1, sizeof *semaphores);
    if (!blocks || !semaphores)
        return BANYAN_ERR_NO_MEMORY;
    for (uint32_t i = 0; i < rank->block_count; i++)
        blocks[i] = rank->blocks[i];
    for (uint32_t i = 0; i < rank->semaphore_count; i++)
        semaphores[i] = rank->semaphores[i];
    blocks[rank->block_count] = *of;
    blocks[rank->block_count].id = rank->block_count;
    rank->blocks = blocks;
    rank->block_count++;
    rank->semaphores = semaphores;
    rank->semaphore_count++;
    return BANYAN_OK;
}

/* Divide the block at `ends`. */
static banyan_status continue_divide(continuation *all, const uint32_t *ends, uint32_t parts)
{
    banyan_plan *plan = all->plan;
    plan_thread_block *whole = plan_take(plan, (size_t)plan->rank_count, sizeof *whole);
    if (!whole)
        return BANYAN_ERR_NO_MEMORY;
    for (int r = 0; r < plan->rank_count; r++)
        whole[r] = *continue_block(all, r);
    for (uint32_t part = 0; part < parts; part++) {
        uint32_t first = part == 0 ? 0 : ends[part - 1];
        for (int r = 0; r < plan->rank_count; r++) {
            plan_rank *rank = &plan->ranks[r];
            if (part > 0)
                RETURN_IF_FAILED(continue_grow(plan, rank, &whole[r]));
            /* The semaphore that lets the next part begin is appended with it. */
            plan_thread_block *to =
                part == 0 ? continue_block(all, r) : &rank->blocks[rank->block_count - 1];
            RETURN_IF_FAILED(
                continue_write(plan, &whole[r], first, ends[part], rank->semaphore_count, to));
        }
        if (part > 0)
            RETURN_IF_FAILED(continue_add_channels(all));
    }
    return BANYAN_OK;
}

static banyan_status continue_all_ranks(continuation *all)
{
    banyan_plan *plan = all->plan;
    uint32_t count = continue_block(all, 0)->op_count, parts = 0, first = 0;
    uint32_t *ends = plan_take(plan, count, sizeof *ends);
    all->open = plan_take(plan, (size_t)plan->rank_count, sizeof *all->open);
    if (!ends || !all->open)
        return BANYAN_ERR_NO_MEMORY;
    for (int r = 0; r < plan->rank_count; r++) {
        all->open[r] =
            plan_take(plan, plan->ranks[r].channel_count[PLAN_MEMORY], sizeof **all->open);
        if (!all->open[r])
            return BANYAN_ERR_NO_MEMORY;
    }
    while (first < count) {
        uint32_t end = continue_find_end(all, first);
        if (end == first)
            return BANYAN_OK; /* the review refuses the plan */
        ends[parts++] = first = end;
    }
    return continue_divide(all, ends, parts);
}

banyan_status mscclpp_continue(banyan_plan *plan)
{
    uint32_t blocks = plan->ranks[0].block_count;
    for (uint32_t b = 0; b < blocks; b++) {
        continuation all = {.plan = plan, .block = b};
        if (continue_applies(&all))
            RETURN_IF_FAILED(continue_all_ranks(&all));
    }
    return BANYAN_OK;
}
