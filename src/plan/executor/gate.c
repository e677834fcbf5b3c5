/* Order consecutive runs without a second half of scratch.
 *
 * At the beginning of a run, the ranks that use the same rank's scratch signal each other. A rank
 * that has all signals knows that the others have ended the run before. So no rank accesses scratch
 * that another one still uses. */
#include <stdlib.h>

#include "core/error.h"
#include "plan/executor/mscclpp.h"

/* A channel by which a rank signals another and waits for it. */
typedef struct gate_channel {
    plan_channel_type type;
    uint32_t channel; /* the rank's number */
} gate_channel;

typedef struct gate {
    banyan_plan *plan;
    bool *uses;  /* [user × ranks + owner]: accesses the owner's scratch */
    bool *meets; /* [a × ranks + b] */
} gate;

static void gate_note_uses(gate *all)
{
    size_t ranks = (size_t)all->plan->rank_count;
    for (int r = 0; r < all->plan->rank_count; r++)
        all->uses[(size_t)r * ranks + (size_t)r] = true;
    for (plan_cursor at = {.plan = all->plan}; plan_cursor_next(&at);) {
        for (uint32_t i = 0; i < plan_operand_count(at.op); i++) {
            const plan_operand *operand = plan_operand_at(at.op, i);
            const int *owners;
            int room;
            if (plan_operand_where(at.plan, at.rank, at.block, at.op, operand).buffer !=
                PLAN_SCRATCH)
                continue;
            int count =
                plan_operand_ranks(at.plan, at.rank, at.block, at.op, operand, &owners, &room);
            for (int k = 0; k < count; k++)
                all->uses[(size_t)at.rank * ranks + (size_t)owners[k]] = true;
        }
    }
}

static void gate_note_meetings(gate *all)
{
    size_t ranks = (size_t)all->plan->rank_count;
    for (size_t a = 0; a < ranks; a++) {
        for (size_t owner = 0; owner < ranks; owner++) {
            for (size_t b = 0; all->uses[a * ranks + owner] && b < ranks; b++)
                all->meets[a * ranks + b] |= a != b && all->uses[b * ranks + owner];
        }
    }
}

/* Return the first thread block with operations; all ranks that meet have one. */
static plan_thread_block *gate_block(plan_rank *rank)
{
    for (uint32_t b = 0; b < rank->block_count; b++) {
        if (rank->blocks[b].op_count > 0)
            return &rank->blocks[b];
    }
    return NULL;
}

/* Find a pair of channels that only the first blocks of both ranks use. */
static bool gate_find_pair(const banyan_plan *plan, plan_channel_type type, int a, int b,
                           uint32_t *of_a, uint32_t *of_b)
{
    for (uint32_t i = 0; i < plan->ranks[a].channel_count[type]; i++) {
        int peer;
        uint32_t back;
        if (plan->ranks[a].peers[type][i] == b &&
            plan_channel_pair(plan, a, type, i, &peer, &back) &&
            mscclpp_owns_channel(&plan->ranks[a], gate_block(&plan->ranks[a]), type, i) &&
            mscclpp_owns_channel(&plan->ranks[b], gate_block(&plan->ranks[b]), type, back)) {
            *of_a = i;
            *of_b = back;
            return true;
        }
    }
    return false;
}

/* Connect two ranks: by memory channels, unless they are connected by port channels alone. */
static bool gate_connect(banyan_plan *plan, int a, int b, gate_channel *of_a, gate_channel *of_b)
{
    bool by_port = mscclpp_count_channels(&plan->ranks[a], PLAN_MEMORY, b) == 0 &&
                   mscclpp_count_channels(&plan->ranks[b], PLAN_MEMORY, a) == 0 &&
                   mscclpp_count_channels(&plan->ranks[a], PLAN_PORT, b) > 0;
    plan_channel_type type = by_port ? PLAN_PORT : PLAN_MEMORY;
    of_a->type = of_b->type = type;
    return gate_find_pair(plan, type, a, b, &of_a->channel, &of_b->channel) ||
           mscclpp_add_pair(plan, type, a, b, &of_a->channel, &of_b->channel);
}

/* Get the block's number for the rank's channel, listing it if necessary. */
static bool gate_number(banyan_plan *plan, plan_thread_block *block, gate_channel wanted,
                        uint32_t *number)
{
    uint32_t count = block->channel_count[wanted.type];
    for (*number = 0; *number < count; ++*number) {
        if (block->channels[wanted.type][*number] == wanted.channel)
            return true;
    }
    uint32_t *channels = plan_take(plan, count + 1, sizeof *channels);
    if (!channels)
        return false;
    for (uint32_t i = 0; i < count; i++)
        channels[i] = block->channels[wanted.type][i];
    channels[count] = wanted.channel;
    block->channels[wanted.type] = channels;
    block->channel_count[wanted.type] = count + 1;
    return true;
}

static bool gate_add_op(banyan_plan *plan, mscclpp_ops *made, plan_op_kind kind,
                        plan_channel_type type, const uint32_t *numbers, uint32_t count)
{
    plan_op op = {.kind = kind, .channel_type = type, .channel_count = count};
    if (count == 0)
        return true;
    op.channels = plan_take(plan, count, sizeof *op.channels);
    if (!op.channels)
        return false;
    for (uint32_t i = 0; i < count; i++)
        op.channels[i] = numbers[i];
    return array_push(made, op);
}

static uint32_t gate_next_barrier(const plan_rank *rank)
{
    uint32_t next = 0;
    for (uint32_t b = 0; b < rank->block_count; b++) {
        for (uint32_t i = 0; i < rank->blocks[b].op_count; i++) {
            const plan_op *op = &rank->blocks[b].ops[i];
            for (uint32_t k = 0; k <= op->op_count; k++) {
                const plan_op *one = k == 0 ? op : &op->ops[k - 1];
                if (one->kind == PLAN_BARRIER && one->barrier >= next)
                    next = one->barrier + 1;
            }
        }
    }
    return next;
}

static uint32_t gate_count_busy(const plan_rank *rank)
{
    uint32_t busy = 0;
    for (uint32_t b = 0; b < rank->block_count; b++)
        busy += rank->blocks[b].op_count > 0;
    return busy;
}

/* Put the operations in front of the block's. */
static banyan_status gate_prepend(banyan_plan *plan, plan_thread_block *block, mscclpp_ops *made)
{
    for (uint32_t i = 0; i < block->op_count; i++) {
        if (!array_push(made, block->ops[i])) {
            array_free(made);
            return BANYAN_ERR_NO_MEMORY;
        }
    }
    return mscclpp_ops_store(plan, made, &block->ops, &block->op_count);
}

/* Let all busy blocks but the first begin with the barrier. */
static banyan_status gate_write_barriers(banyan_plan *plan, plan_rank *rank, const plan_op *barrier)
{
    for (uint32_t b = 0; b < rank->block_count; b++) {
        mscclpp_ops made = {0};
        if (&rank->blocks[b] == gate_block(rank) || rank->blocks[b].op_count == 0)
            continue;
        if (!array_push(&made, *barrier))
            return BANYAN_ERR_NO_MEMORY;
        RETURN_IF_FAILED(gate_prepend(plan, &rank->blocks[b], &made));
    }
    return BANYAN_OK;
}

/* Signals to all that the rank meets, then waits for them; the other blocks wait at a barrier. */
static banyan_status gate_write_rank(gate *all, int r, const gate_channel *channels)
{
    banyan_plan *plan = all->plan;
    plan_rank *rank = &plan->ranks[r];
    plan_thread_block *block = gate_block(rank);
    uint32_t counts[PLAN_CHANNEL_TYPES] = {0}, ranks = (uint32_t)plan->rank_count;
    uint32_t *numbers[PLAN_CHANNEL_TYPES] = {NULL};
    mscclpp_ops made = {0};
    for (int type = PLAN_MEMORY; type <= PLAN_PORT; type++) {
        if (!(numbers[type] = plan_take(plan, ranks, sizeof **numbers)))
            return BANYAN_ERR_NO_MEMORY;
    }
    for (uint32_t peer = 0; peer < ranks; peer++) {
        gate_channel with = channels[peer];
        if (!all->meets[(uint32_t)r * ranks + peer])
            continue;
        if (!gate_number(plan, block, with, &numbers[with.type][counts[with.type]++]))
            return BANYAN_ERR_NO_MEMORY;
    }
    plan_op last = {.kind = PLAN_NOP};
    if (gate_count_busy(rank) > 1)
        last = (plan_op){.kind = PLAN_BARRIER,
                         .barrier = gate_next_barrier(rank),
                         .barrier_members = gate_count_busy(rank)};
    if (!gate_add_op(plan, &made, PLAN_RELAXED_SIGNAL, PLAN_MEMORY, numbers[PLAN_MEMORY],
                     counts[PLAN_MEMORY]) ||
        !gate_add_op(plan, &made, PLAN_SIGNAL, PLAN_PORT, numbers[PLAN_PORT], counts[PLAN_PORT]) ||
        !gate_add_op(plan, &made, PLAN_RELAXED_WAIT, PLAN_MEMORY, numbers[PLAN_MEMORY],
                     counts[PLAN_MEMORY]) ||
        !gate_add_op(plan, &made, PLAN_WAIT, PLAN_PORT, numbers[PLAN_PORT], counts[PLAN_PORT]) ||
        !array_push(&made, last)) {
        array_free(&made);
        return BANYAN_ERR_NO_MEMORY;
    }
    banyan_status status =
        last.kind == PLAN_BARRIER ? gate_write_barriers(plan, rank, &last) : BANYAN_OK;
    if (status != BANYAN_OK) {
        array_free(&made);
        return status;
    }
    return gate_prepend(plan, block, &made);
}

static banyan_status gate_write(gate *all, gate_channel *channels)
{
    size_t ranks = (size_t)all->plan->rank_count;
    for (size_t a = 0; a < ranks; a++) {
        for (size_t b = a + 1; b < ranks; b++) {
            if (all->meets[a * ranks + b] &&
                !gate_connect(all->plan, (int)a, (int)b, &channels[a * ranks + b],
                              &channels[b * ranks + a]))
                return BANYAN_ERR_NO_MEMORY;
        }
    }
    for (size_t r = 0; r < ranks; r++) {
        if (gate_block(&all->plan->ranks[r]))
            RETURN_IF_FAILED(gate_write_rank(all, (int)r, &channels[r * ranks]));
    }
    return BANYAN_OK;
}

banyan_status mscclpp_gate(banyan_plan *plan)
{
    size_t pairs = (size_t)plan->rank_count * (size_t)plan->rank_count;
    gate all = {.plan = plan};
    all.uses = plan_take(plan, pairs, sizeof *all.uses);
    all.meets = plan_take(plan, pairs, sizeof *all.meets);
    gate_channel *channels = plan_take(plan, pairs, sizeof *channels);
    if (!all.uses || !all.meets || !channels)
        return BANYAN_ERR_NO_MEMORY;
    gate_note_uses(&all);
    gate_note_meetings(&all);
    RETURN_IF_FAILED(gate_write(&all, channels));
    plan->double_scratch = false;
    return BANYAN_OK;
}
