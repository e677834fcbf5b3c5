/* Replication: instance i of n of thread block, channel, semaphore or barrier x is x·n + i. */
#include "program/compile/pass.h"

#include <inttypes.h>
#include <string.h>

typedef struct replica {
    banyan_plan *plan;
    uint32_t instance, instances;
    bool interleaved;
} replica;

static uint32_t pass_instances_numbered(const replica *r, uint32_t number)
{
    return number * r->instances + r->instance;
}

static uint32_t *copy_numbers(const replica *r, const uint32_t *numbers, uint32_t count, bool shift)
{
    uint32_t *copy = plan_take(r->plan, count, sizeof *copy);
    for (uint32_t i = 0; copy && i < count; i++)
        copy[i] = shift ? pass_instances_numbered(r, numbers[i]) : numbers[i];
    return copy;
}

static plan_operand *copy_operands(const replica *r, const plan_operand *operands, uint32_t count)
{
    plan_operand *copy = plan_take(r->plan, count, sizeof *copy);
    for (uint32_t i = 0; copy && i < count; i++) {
        copy[i] = operands[i];
        if (r->interleaved)
            copy[i].index = operands[i].index * r->instances + r->instance * operands[i].size;
    }
    return copy;
}

static plan_op *pass_instances_copy_ops(const replica *r, const plan_op *ops, uint32_t count);

static bool copy_op(const replica *r, const plan_op *op, plan_op *copy)
{
    *copy = *op;
    copy->sources = copy_operands(r, op->sources, op->source_count);
    copy->destinations = copy_operands(r, op->destinations, op->destination_count);
    /* Indices into the thread block's own list of channels, which is renumbered. */
    copy->channels = copy_numbers(r, op->channels, op->channel_count, false);
    copy->semaphores = copy_numbers(r, op->semaphores, op->semaphore_count, true);
    if (op->kind == PLAN_BARRIER)
        copy->barrier = pass_instances_numbered(r, op->barrier);
    copy->ops = pass_instances_copy_ops(r, op->ops, op->op_count);
    return copy->sources && copy->destinations && copy->channels && copy->semaphores && copy->ops;
}

static plan_op *pass_instances_copy_ops(const replica *r, const plan_op *ops, uint32_t count)
{
    plan_op *copy = plan_take(r->plan, count, sizeof *copy);
    for (uint32_t i = 0; copy && i < count; i++) {
        if (!copy_op(r, &ops[i], &copy[i]))
            return NULL;
    }
    return copy;
}

static bool pass_instances_copy_block(const replica *r, const plan_thread_block *block,
                                      plan_thread_block *copy)
{
    *copy = *block;
    copy->id = pass_instances_numbered(r, block->id);
    copy->ops = pass_instances_copy_ops(r, block->ops, block->op_count);
    for (int type = 0; type < PLAN_CHANNEL_TYPES; type++) {
        copy->channels[type] =
            copy_numbers(r, block->channels[type], block->channel_count[type], true);
        copy->remote_buffers[type] =
            copy_numbers(r, block->remote_buffers[type], block->remote_buffer_count[type], false);
        if (!copy->channels[type] || !copy->remote_buffers[type])
            return false;
    }
    return copy->ops;
}

static banyan_status replicate_blocks(banyan_plan *plan, plan_rank *rank, replica r)
{
    plan_thread_block *blocks =
        plan_take(plan, (size_t)rank->block_count * r.instances, sizeof *blocks);
    if (!blocks)
        return BANYAN_ERR_NO_MEMORY;
    for (uint32_t b = 0; b < rank->block_count; b++) {
        for (r.instance = 0; r.instance < r.instances; r.instance++) {
            if (!pass_instances_copy_block(&r, &rank->blocks[b],
                                           &blocks[b * r.instances + r.instance]))
                return BANYAN_ERR_NO_MEMORY;
        }
    }
    rank->blocks = blocks;
    rank->block_count *= r.instances;
    return BANYAN_OK;
}

/* Repeat the whole list `instances` times in a row. */
#define REPEAT(plan, list, list_count, instances)                                                  \
    pass_instances_repeat((plan), (void **)&(list), &(list_count), sizeof *(list), (instances))

static bool pass_instances_repeat(banyan_plan *plan, void **list, uint32_t *count, size_t bytes,
                                  uint32_t instances)
{
    unsigned char *repeated = plan_take(plan, (size_t)*count * instances, bytes);
    if (!repeated)
        return false;
    for (size_t i = 0; i < (size_t)*count * instances; i++)
        memcpy(repeated + i * bytes, (unsigned char *)*list + i / instances * bytes, bytes);
    *list = repeated;
    *count *= instances;
    return true;
}

static banyan_status replicate_rank(banyan_plan *plan, plan_rank *rank, const replica *r)
{
    uint32_t switches = rank->channel_count[PLAN_SWITCH];
    if (!REPEAT(plan, rank->peers[PLAN_MEMORY], rank->channel_count[PLAN_MEMORY], r->instances) ||
        !REPEAT(plan, rank->peers[PLAN_PORT], rank->channel_count[PLAN_PORT], r->instances) ||
        !REPEAT(plan, rank->switches, switches, r->instances) ||
        !REPEAT(plan, rank->semaphores, rank->semaphore_count, r->instances))
        return BANYAN_ERR_NO_MEMORY;
    rank->channel_count[PLAN_SWITCH] = switches;
    for (int buffer = 0; buffer < PLAN_BUFFERS && r->interleaved; buffer++)
        rank->chunks[buffer] *= r->instances;
    return replicate_blocks(plan, rank, *r);
}

/* Expected chunk x becomes chunks x·n … x·n + n - 1, and so do its contributions. */
static banyan_status replicate_expected(banyan_plan *plan, int rank, uint64_t chunks,
                                        uint32_t instances)
{
    plan_expected *all = plan_take(plan, chunks * instances, sizeof *all);
    if (!all)
        return BANYAN_ERR_NO_MEMORY;
    for (uint64_t chunk = 0; chunk < chunks * instances; chunk++) {
        const plan_expected *of = &plan->expected[rank][chunk / instances];
        plan_contribution *from = plan_take(plan, of->count, sizeof *from);
        if (!from)
            return BANYAN_ERR_NO_MEMORY;
        for (size_t i = 0; i < of->count; i++)
            from[i] =
                (plan_contribution){of->contributions[i].rank,
                                    of->contributions[i].chunk * instances + chunk % instances};
        all[chunk] = (plan_expected){from, of->count};
    }
    plan->expected[rank] = all;
    return BANYAN_OK;
}

static bool pass_instances_fits(uint64_t count, uint64_t instances, uint64_t most)
{
    return count <= most / instances;
}

static banyan_status pass_instances_check_counts(const banyan_plan *plan, int rank,
                                                 uint64_t instances)
{
    const plan_rank *of = &plan->ranks[rank];
    bool all = pass_instances_fits(of->block_count, instances, UINT32_MAX) &&
               pass_instances_fits(of->semaphore_count, instances, UINT32_MAX);
    for (int type = 0; type < PLAN_CHANNEL_TYPES; type++)
        all = all && pass_instances_fits(of->channel_count[type], instances, UINT32_MAX);
    for (int buffer = 0; buffer < PLAN_BUFFERS; buffer++)
        all = all && pass_instances_fits(of->chunks[buffer], instances, UINT64_MAX);
    all = all && pass_instances_fits(plan->block_chunks, instances, UINT64_MAX);
    if (all)
        return BANYAN_OK;
    return error_set(BANYAN_ERR_INVALID,
                     "rank %d: %" PRIu64 " instances of its thread blocks, channels, semaphores "
                     "and chunks are more than can be counted",
                     rank, instances);
}

banyan_status pass_instances(const banyan_plan *plan, int instances, banyan_replication policy,
                             banyan_plan **made)
{
    for (int rank = 0; rank < plan->rank_count; rank++)
        RETURN_IF_FAILED(pass_instances_check_counts(plan, rank, (uint64_t)instances));
    banyan_plan *clone;
    RETURN_IF_FAILED(plan_clone(plan, &clone));
    replica r = {clone, 0, (uint32_t)instances, policy == BANYAN_INTERLEAVED};
    if (r.interleaved && clone->block_chunks > 1)
        clone->block_chunks *= r.instances;
    banyan_status status = BANYAN_OK;
    for (int rank = 0; rank < clone->rank_count && status == BANYAN_OK; rank++) {
        uint64_t outputs = clone->ranks[rank].chunks[PLAN_OUTPUT];
        status = replicate_rank(clone, &clone->ranks[rank], &r);
        if (status == BANYAN_OK && clone->expected && r.interleaved)
            status = replicate_expected(clone, rank, outputs, r.instances);
    }
    if (status != BANYAN_OK) {
        banyan_plan_destroy(clone);
        return status;
    }
    *made = clone;
    return BANYAN_OK;
}
