#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "plan/op.h"
#include "simulate/engine/engine.h"

/* Thread blocks of a chain that the message lists. */
#define LINKS_MOST 6

static bool is_over(const sim_block *block)
{
    return block->at == block->block->op_count;
}

static const plan_op *op_of(const sim_block *block)
{
    const plan_op *op = &block->block->ops[block->at];
    return op->kind == PLAN_PIPELINE ? &op->ops[block->inner] : op;
}

static bool signals_on(const sim_block *block, const plan_op *op, plan_channel_type type,
                       uint32_t channel)
{
    if (op->channel_type != type || !plan_op_form_of(op->kind)->signals)
        return false;
    for (uint32_t i = 0; i < op->channel_count; i++) {
        if (plan_channel_of(block->block, op, op->channels[i]) == channel)
            return true;
    }
    return false;
}

static bool hang_releases(const plan_op *op, uint32_t semaphore)
{
    for (uint32_t i = 0; op->kind == PLAN_SEM_RELEASE && i < op->semaphore_count; i++) {
        if (op->semaphores[i] == semaphore)
            return true;
    }
    return false;
}

/* An event that a thread block waits for, and the blocks that could still provide it. */
typedef struct missing {
    char what[160];
    int rank; /* rank that would provide it */
    plan_channel_type type;
    uint32_t number; /* channel there, semaphore or barrier */
    plan_op_kind kind;
} missing;

static missing hang_find_missing(const engine *all, const sim_block *block)
{
    const plan_op *op = op_of(block);
    missing found = {.rank = block->rank, .type = op->channel_type, .kind = op->kind};
    if (op->kind == PLAN_WAIT || op->kind == PLAN_RELAXED_WAIT) {
        uint32_t channel = plan_channel_of(block->block, op, op->channels[block->taken]);
        plan_pairs_find(&all->pairs, block->rank, op->channel_type, channel, &found.rank,
                        &found.number);
        snprintf(found.what, sizeof found.what, "a signal of rank %d on %s channel %" PRIu32,
                 found.rank, plan_channel_name(op->channel_type), channel);
    } else if (op->kind == PLAN_SEM_ACQUIRE) {
        found.number = op->semaphores[block->taken];
        snprintf(found.what, sizeof found.what, "a release of semaphore %" PRIu32, found.number);
    } else if (op->kind == PLAN_BARRIER) {
        found.number = op->barrier;
        snprintf(found.what, sizeof found.what, "the others at barrier %" PRIu32, found.number);
    } else {
        snprintf(found.what, sizeof found.what, "packets in its scratch");
    }
    return found;
}

static bool would_do(const sim_block *block, const plan_op *op, const missing *what)
{
    for (uint32_t i = 0; i < op->op_count; i++) {
        if (would_do(block, &op->ops[i], what))
            return true;
    }
    switch (what->kind) {
    case PLAN_WAIT:
    case PLAN_RELAXED_WAIT:
        return signals_on(block, op, what->type, what->number);
    case PLAN_SEM_ACQUIRE:
        return hang_releases(op, what->number);
    case PLAN_BARRIER:
        return op->kind == PLAN_BARRIER && op->barrier == what->number;
    default:
        return plan_op_writes_packets(op->kind);
    }
}

/* Find a waiting thread block that would provide it afterwards; NO_LANE: none. Packets may come
 * from any rank. */
static uint32_t find_culprit(const engine *all, uint32_t self, const missing *what)
{
    for (uint32_t lane = 0; lane < all->block_count; lane++) {
        const sim_block *block = &all->blocks[lane];
        bool any_rank = what->type != PLAN_MEMORY && what->type != PLAN_PORT &&
                        what->kind != PLAN_SEM_ACQUIRE && what->kind != PLAN_BARRIER;
        if (lane == self || is_over(block) || (!any_rank && block->rank != what->rank))
            continue;
        if (what->kind == PLAN_BARRIER && block->arrived && op_of(block)->barrier == what->number)
            continue;
        for (uint32_t i = block->at; i < block->block->op_count; i++) {
            if (would_do(block, &block->block->ops[i], what))
                return lane;
        }
    }
    return NO_LANE;
}

static size_t hang_tell(const engine *all, uint32_t lane, const missing *what, char *text,
                        size_t room)
{
    const sim_block *block = &all->blocks[lane];
    const plan_op *op = op_of(block);
    char where[48] = "";
    if (&block->block->ops[block->at] != op)
        snprintf(where, sizeof where, ".%" PRIu32 " in iteration %" PRIu64, block->inner,
                 block->iteration);
    int written = snprintf(text, room,
                           "rank %d, thread block %" PRIu32 ", operation %" PRIu32 "%s (%s) waits "
                           "for %s",
                           block->rank, block->block->id, block->at, where, plan_op_name(op->kind),
                           what->what);
    return written < 0 || (size_t)written >= room ? room - 1 : (size_t)written;
}

banyan_status engine_hangs(const engine *all)
{
    char text[1024];
    size_t used = 0;
    uint32_t lane = 0, first;
    while (is_over(&all->blocks[lane]))
        lane++;
    first = lane;
    for (int links = 0; links < LINKS_MOST; links++) {
        missing what = hang_find_missing(all, &all->blocks[lane]);
        used += hang_tell(all, lane, &what, text + used, sizeof text - used);
        lane = find_culprit(all, lane, &what);
        const char *then = lane == NO_LANE ? ", which nobody does any more" : "; ";
        then = lane == first ? ": a circle" : then;
        used += (size_t)snprintf(text + used, sizeof text - used, "%s",
                                 links + 1 == LINKS_MOST && lane != NO_LANE ? "; …" : then);
        if (used >= sizeof text)
            used = sizeof text - 1;
        if (lane == NO_LANE || lane == first)
            break;
    }
    return error_set(BANYAN_ERR_MISMATCH, "plan %s hangs: %s", all->plan->name, text);
}
