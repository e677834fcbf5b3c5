#include "execute/load/spmd.h"

#include "plan/stepper.h"

static bool spmd_is_put(const plan_op *op)
{
    return op->channel_type == PLAN_PORT && op->channel_count > 0 && op->kind != PLAN_WAIT &&
           op->kind != PLAN_RELAXED_WAIT && op->kind != PLAN_FLUSH;
}

/* The position of a thread block's first put or signal through a port channel. */
typedef struct port_use {
    uint32_t op, channel;
} port_use;

static port_use first_use(const plan_thread_block *block, uint32_t number)
{
    for (uint32_t i = 0; i < block->op_count; i++) {
        const plan_op *op = &block->ops[i];
        for (uint32_t k = 0; k < op->channel_count && spmd_is_put(op); k++) {
            if (op->channels[k] == number)
                return (port_use){i, k};
        }
    }
    return (port_use){block->op_count, 0};
}

/* True if both thread blocks use their channels in the same order. */
static bool spmd_same_channels(const plan_thread_block *a, const plan_thread_block *b)
{
    for (uint32_t i = 0; i < a->op_count; i++) {
        for (uint32_t k = 0; k < a->ops[i].channel_count && spmd_is_put(&a->ops[i]); k++) {
            port_use one = first_use(a, a->ops[i].channels[k]);
            port_use other = first_use(b, b->ops[i].channels[k]);
            if (one.op != other.op || one.channel != other.channel)
                return false;
        }
    }
    return true;
}

static bool spmd_same_ops(const plan_op *a, const plan_op *b, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (a[i].kind != b[i].kind || a[i].channel_type != b[i].channel_type ||
            a[i].channel_count != b[i].channel_count || a[i].source_count != b[i].source_count ||
            a[i].destination_count != b[i].destination_count || a[i].op_count != b[i].op_count ||
            !spmd_same_ops(a[i].ops, b[i].ops, a[i].op_count))
            return false;
    }
    return true;
}

bool plan_is_spmd(const banyan_plan *plan)
{
    const plan_thread_block *first = NULL;
    for (int r = 0; r < plan->rank_count; r++) {
        const plan_rank *rank = &plan->ranks[r];
        if (rank->block_count == 0 || rank->block_count != plan->ranks[0].block_count)
            return false;
        for (uint32_t b = 0; b < rank->block_count; b++) {
            const plan_thread_block *block = &rank->blocks[b];
            first = first ? first : block;
            if (block->op_count != first->op_count ||
                !spmd_same_ops(first->ops, block->ops, block->op_count) ||
                !spmd_same_channels(first, block))
                return false;
        }
    }
    return true;
}

/* Find the number of a port channel in a thread block that puts through it. */
static bool find_number(const plan_thread_block *block, uint32_t channel, uint32_t *number)
{
    for (uint32_t i = 0; i < block->channel_count[PLAN_PORT]; i++) {
        *number = i;
        if (block->channels[PLAN_PORT][i] == channel)
            return first_use(block, i).op < block->op_count;
    }
    return false;
}

static uint32_t spmd_count_blocks(const plan_rank *rank, uint32_t channel)
{
    uint32_t count = 0, number;
    for (uint32_t b = 0; b < rank->block_count; b++)
        count += find_number(&rank->blocks[b], channel, &number);
    return count;
}

/* Return the channel that a thread block first uses at the position where its counterpart first
 * uses the given one. */
static uint32_t spmd_counterpart(const plan_thread_block *block, const plan_thread_block *of,
                                 uint32_t number)
{
    port_use first = first_use(of, number);
    const plan_op *op = &block->ops[first.op];
    return plan_channel_of(block, op, op->channels[first.channel]);
}

bool plan_mirror(const banyan_plan *plan, int rank, uint32_t channel, uint32_t *mirror)
{
    int peer;
    uint32_t other, number, found = 0, blocks = 0;
    if (!plan_channel_pair(plan, rank, PLAN_PORT, channel, &peer, &other))
        return false;
    const plan_rank *here = &plan->ranks[rank], *there = &plan->ranks[peer];
    for (uint32_t b = 0; b < here->block_count; b++) {
        if (!find_number(&there->blocks[b], other, &number))
            continue;
        uint32_t now = spmd_counterpart(&here->blocks[b], &there->blocks[b], number);
        if (blocks++ > 0 && now != found)
            return false;
        found = now;
    }
    if (blocks == 0 || spmd_count_blocks(here, found) != blocks)
        return false;
    *mirror = found;
    return true;
}

/* Perform the operation of this position in all thread blocks. They are of one kind. */
static bool lock_step_go(plan_stepper *all, uint32_t at)
{
    plan_event latest = {0};
    for (uint32_t b = 0; b < all->block_count; b++) {
        plan_position *by = &all->blocks[b];
        const plan_op *op = &by->block->ops[at];
        if (op->kind == PLAN_PIPELINE || op->kind == PLAN_BARRIER || op->kind == PLAN_SEM_ACQUIRE ||
            plan_op_reads_packets(op->kind))
            return false;
        *by = (plan_position){.rank = by->rank, .block = by->block, .at = at};
        if (!plan_stepper_take(all, by, &latest))
            return false;
        for (uint32_t k = 0; k < plan_op_gives(op); k++) {
            uint32_t to = plan_stepper_given(all, by, op, k);
            if (to != PLAN_NONE)
                all->counters[to].given++;
        }
    }
    return true;
}

banyan_status plan_runs_in_lock_step(const banyan_plan *plan, bool *in_step)
{
    plan_stepper all;
    banyan_status status = plan_stepper_make(plan, NULL, &all);
    if (status == BANYAN_OK) {
        uint32_t count = plan->ranks[0].blocks[0].op_count, at = 0;
        while (at < count && lock_step_go(&all, at))
            at++;
        *in_step = at == count;
    }
    plan_stepper_free(&all);
    return status;
}
