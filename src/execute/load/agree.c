/* Agreement that all ranks load the same plan with the same options. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/containers.h"
#include "execute/load/loaded.h"
#include "world/control.h"

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

/* Hash everything that a run depends on. Equal plans have equal fingerprints on all machines of
 * one byte order. Names and tags do not count. */
static uint64_t plan_fingerprint(const banyan_plan *plan)
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

/* Values that must be equal on all ranks. */
struct load_record {
    uint64_t fingerprint, max_message_bytes;
    uint64_t memories[2]; /* number + 1 of a symmetric buffer; 0: none */
};

/* Describe the first different operation, or other difference. Called on the rank with the
 * different plan. */
static banyan_status describe_difference(const banyan_loaded_plan *loaded, const char *text,
                                         uint64_t bytes)
{
    banyan_plan *first;
    char *line;
    size_t differences;
    RETURN_IF_FAILED(banyan_plan_parse(text, bytes, "rank 0's plan", &first));
    banyan_status status = banyan_plan_diff(first, loaded->plan, 1, &line, &differences);
    banyan_plan_destroy(first);
    RETURN_IF_FAILED(status);
    line[strcspn(line, "\n")] = '\0';
    status = error_set(BANYAN_ERR_MISMATCH,
                       "rank %d loads another plan than rank 0: of %zu differences the first is %s",
                       loaded->executor->rank, differences, line);
    free(line);
    return status;
}

/* Rank 0 sends its plan to all ranks, since all know which other rank's plan differs. */
static banyan_status compare_plans(const banyan_loaded_plan *loaded, int other)
{
    const banyan_executor *executor = loaded->executor;
    char *text = NULL;
    size_t length = 0;
    banyan_status status = BANYAN_OK;
    if (executor->rank == 0)
        status = banyan_plan_print(loaded->plan, &text, &length);
    uint64_t bytes = length;
    status = control_agree(executor->world, status);
    if (status == BANYAN_OK)
        status = banyan_world_broadcast(executor->world, &bytes, sizeof bytes, 0);
    if (status == BANYAN_OK && executor->rank != 0 && !(text = malloc(bytes + 1)))
        status = error_no_memory(bytes + 1, "rank 0's plan");
    status = control_agree(executor->world, status);
    if (status == BANYAN_OK)
        status = banyan_world_broadcast(executor->world, text, bytes, 0);
    if (status == BANYAN_OK && executor->rank == other)
        status = describe_difference(loaded, text, bytes);
    free(text);
    return control_agree(executor->world, status);
}

static banyan_status compare_records(const banyan_loaded_plan *loaded,
                                     const struct load_record *all)
{
    for (int r = 1; r < loaded->executor->ranks; r++) {
        const struct load_record *first = &all[0], *other = &all[r];
        if (other->fingerprint != first->fingerprint)
            return compare_plans(loaded, r);
        if (other->max_message_bytes != first->max_message_bytes)
            return error_set(BANYAN_ERR_MISMATCH,
                             "rank %d loads the plan for messages of %" PRIu64
                             " bytes at most, rank 0 of %" PRIu64,
                             r, other->max_message_bytes, first->max_message_bytes);
        for (int i = 0; i < 2; i++) {
            if (other->memories[i] != first->memories[i])
                return error_set(BANYAN_ERR_MISMATCH,
                                 "rank %d and rank 0 load the plan with different %s memory", r,
                                 i == 0 ? "input" : "output");
        }
    }
    return BANYAN_OK;
}

banyan_status load_agree(banyan_loaded_plan *loaded)
{
    banyan_executor *executor = loaded->executor;
    struct load_record mine = {.fingerprint = plan_fingerprint(loaded->plan),
                               .max_message_bytes = loaded->max_message_bytes};
    for (int i = 0; i < 2; i++)
        mine.memories[i] = loaded->memories[i] ? loaded->memories[i]->id + 1 : 0;
    void *all;
    banyan_status status =
        control_gather(executor->world, BANYAN_OK, &mine, sizeof mine, "what ranks load", &all);
    if (status == BANYAN_OK)
        status = control_fail_together(executor->world, compare_records(loaded, all));
    free(all);
    return status;
}
