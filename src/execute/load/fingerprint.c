#include "execute/load/fingerprint.h"

#include "core/containers.h"

/* Fold values one after another. A list's length precedes it, which separates it from the next
 * list. */
static uint64_t fingerprint_fold(uint64_t seed, uint64_t value)
{
    return hash_bytes(&value, sizeof value, seed);
}

static uint64_t fold_operands(uint64_t seed, const plan_operand *operands, uint32_t count)
{
    seed = fingerprint_fold(seed, count);
    for (uint32_t i = 0; i < count; i++) {
        const plan_operand *operand = &operands[i];
        const uint64_t words[] = {operand->place, operand->buffer, operand->reference,
                                  operand->index, operand->size};
        seed = hash_bytes(words, sizeof words, seed);
    }
    return seed;
}

static uint64_t fold_ops(uint64_t seed, const plan_op *ops, uint32_t count)
{
    seed = fingerprint_fold(seed, count);
    for (uint32_t i = 0; i < count; i++) {
        const plan_op *op = &ops[i];
        const uint64_t words[] = {
            op->kind,
            op->channel_type,
            op->reduce_op,
            op->channel_count,
            op->semaphore_count,
            op->barrier,
            op->barrier_members,
            op->group_index,
            op->group_size,
            op->unit_bytes,
            op->loop_chunks,
        };
        seed = hash_bytes(words, sizeof words, seed);
        seed = hash_bytes(op->channels, op->channel_count * sizeof *op->channels, seed);
        seed = hash_bytes(op->semaphores, op->semaphore_count * sizeof *op->semaphores, seed);
        seed = fold_operands(seed, op->sources, op->source_count);
        seed = fold_operands(seed, op->destinations, op->destination_count);
        seed = fold_ops(seed, op->ops, op->op_count);
    }
    return seed;
}

static uint64_t fold_block(uint64_t seed, const plan_thread_block *block)
{
    for (int type = 0; type < PLAN_CHANNEL_TYPES; type++) {
        seed = fingerprint_fold(seed, block->channel_count[type]);
        seed = hash_bytes(block->channels[type],
                          block->channel_count[type] * sizeof *block->channels[type], seed);
        seed = fingerprint_fold(seed, block->remote_buffer_count[type]);
        seed = hash_bytes(block->remote_buffers[type],
                          block->remote_buffer_count[type] * sizeof *block->remote_buffers[type],
                          seed);
    }
    return fold_ops(seed, block->ops, block->op_count);
}

static uint64_t fold_rank(uint64_t seed, const plan_rank *rank)
{
    seed = hash_bytes(rank->chunks, sizeof rank->chunks, seed);
    for (int type = PLAN_MEMORY; type <= PLAN_PORT; type++) {
        seed = fingerprint_fold(seed, rank->channel_count[type]);
        seed = hash_bytes(rank->peers[type], rank->channel_count[type] * sizeof *rank->peers[type],
                          seed);
    }
    seed = fingerprint_fold(seed, rank->channel_count[PLAN_SWITCH]);
    for (uint32_t i = 0; i < rank->channel_count[PLAN_SWITCH]; i++) {
        const plan_switch *group = &rank->switches[i];
        seed = fingerprint_fold(fingerprint_fold(seed, group->buffer), (uint64_t)group->rank_count);
        seed = hash_bytes(group->ranks, (size_t)group->rank_count * sizeof *group->ranks, seed);
    }
    seed = fingerprint_fold(seed, rank->remote_buffer_count);
    for (uint32_t i = 0; i < rank->remote_buffer_count; i++) {
        seed = fingerprint_fold(seed, (uint64_t)rank->remote_buffers[i].rank);
        seed = fingerprint_fold(seed, rank->remote_buffers[i].buffer);
    }
    seed = fingerprint_fold(seed, rank->semaphore_count);
    seed = hash_bytes(rank->semaphores, rank->semaphore_count * sizeof *rank->semaphores, seed);
    seed = fingerprint_fold(seed, rank->block_count);
    for (uint32_t i = 0; i < rank->block_count; i++)
        seed = fold_block(seed, &rank->blocks[i]);
    return seed;
}

uint64_t plan_fingerprint(const banyan_plan *plan)
{
    const uint64_t words[] = {
        plan->collective,
        (uint64_t)plan->root,
        (uint64_t)plan->shift,
        plan->protocol,
        plan->in_place,
        plan->reuse_resources,
        plan->double_scratch,
        plan->buffer_alignment,
        plan->reused_scratch_bytes,
        plan->block_chunks,
        (uint64_t)plan->rank_count,
    };
    uint64_t seed = hash_bytes(words, sizeof words, 0);
    for (int i = 0; i < plan->rank_count; i++)
        seed = fold_rank(seed, &plan->ranks[i]);
    return seed;
}
