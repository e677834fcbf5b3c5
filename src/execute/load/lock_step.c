#include "execute/load/lock_step.h"

#include <stdlib.h>

#include "core/error.h"
#include "plan/pairs.h"

/* Signals that have arrived and that no wait has taken. */
typedef struct arrivals {
    const banyan_plan *plan;
    plan_pairs pairs;
    uint64_t *first; /* each rank's first channel among all: memory channels, then port channels */
    uint64_t *count; /* by channel */
} arrivals;

static uint64_t *arrived_at(const arrivals *all, int rank, plan_channel_type type, uint32_t channel)
{
    const uint32_t *counts = all->plan->ranks[rank].channel_count;
    uint64_t before = all->first[rank] + (type == PLAN_PORT ? counts[PLAN_MEMORY] : 0);
    return &all->count[before + channel];
}

static bool lock_step_is_wait(const plan_op *op)
{
    return op->kind == PLAN_WAIT || op->kind == PLAN_RELAXED_WAIT;
}

static bool is_signal(const plan_op *op)
{
    return op->kind == PLAN_SIGNAL || op->kind == PLAN_RELAXED_SIGNAL ||
           op->kind == PLAN_PUT_WITH_SIGNAL || op->kind == PLAN_PUT_WITH_SIGNAL_AND_FLUSH;
}

static bool waits_for_something_else(const plan_op *op)
{
    return op->kind == PLAN_PIPELINE || op->kind == PLAN_BARRIER || op->kind == PLAN_SEM_ACQUIRE ||
           plan_op_reads_packets(op->kind);
}

static bool lock_step_take_all(arrivals *all, int rank, const plan_thread_block *block,
                               const plan_op *op)
{
    for (uint32_t k = 0; k < op->channel_count; k++) {
        uint32_t channel = plan_channel_of(block, op, op->channels[k]);
        uint64_t *arrived = arrived_at(all, rank, op->channel_type, channel);
        if (*arrived == 0)
            return false;
        --*arrived;
    }
    return true;
}

static void lock_step_signal_all(arrivals *all, int rank, const plan_thread_block *block,
                                 const plan_op *op)
{
    for (uint32_t k = 0; k < op->channel_count; k++) {
        int peer;
        uint32_t channel = plan_channel_of(block, op, op->channels[k]), other;
        if (plan_pairs_find(&all->pairs, rank, op->channel_type, channel, &peer, &other))
            ++*arrived_at(all, peer, op->channel_type, other);
    }
}

/* Perform the operation of this position in all thread blocks. They are of one kind. */
static bool go_through(arrivals *all, uint32_t at)
{
    for (int r = 0; r < all->plan->rank_count; r++) {
        const plan_rank *rank = &all->plan->ranks[r];
        for (uint32_t b = 0; b < rank->block_count; b++) {
            const plan_thread_block *block = &rank->blocks[b];
            const plan_op *op = &block->ops[at];
            if (waits_for_something_else(op) ||
                (lock_step_is_wait(op) && !lock_step_take_all(all, r, block, op)))
                return false;
            if (is_signal(op))
                lock_step_signal_all(all, r, block, op);
        }
    }
    return true;
}

static banyan_status lock_step_take_room(arrivals *all)
{
    uint64_t channels = 0;
    all->first = calloc((size_t)all->plan->rank_count, sizeof *all->first);
    for (int r = 0; r < all->plan->rank_count && all->first; r++) {
        const uint32_t *counts = all->plan->ranks[r].channel_count;
        all->first[r] = channels;
        channels += (uint64_t)counts[PLAN_MEMORY] + counts[PLAN_PORT];
    }
    all->count = calloc((size_t)channels + 1, sizeof *all->count);
    if (!all->first || !all->count)
        return error_no_memory((size_t)channels * sizeof *all->count, "a plan's signals");
    return plan_pairs_make(all->plan, &all->pairs);
}

banyan_status plan_runs_in_lock_step(const banyan_plan *plan, bool *in_step)
{
    arrivals all = {.plan = plan};
    banyan_status status = lock_step_take_room(&all);
    if (status == BANYAN_OK) {
        uint32_t count = plan->ranks[0].blocks[0].op_count, at = 0;
        while (at < count && go_through(&all, at))
            at++;
        *in_step = at == count;
        plan_pairs_free(&all.pairs);
    }
    free(all.first);
    free(all.count);
    return status;
}
