#include "plan/geometry/geometry.h"

#include "plan/op.h"

#define ULL(number) ((unsigned long long)(number))

/* No buffer is longer, so sums of a few sizes cannot overflow. */
#define BYTES_MAX (UINT64_C(1) << 60)

plan_share plan_share_of(uint64_t total, uint64_t alignment, uint32_t index, uint32_t size)
{
    if (size == 0)
        return (plan_share){0, total};
    uint64_t units = total / alignment, least = units / size, more = units % size;
    uint64_t begin = index * least + (index < more ? index : more);
    return (plan_share){begin * alignment, (begin + least + (index < more)) * alignment};
}

static uint64_t geometry_most_chunks(const banyan_plan *plan, plan_buffer buffer)
{
    uint64_t most = 0;
    for (int r = 0; r < plan->rank_count; r++) {
        if (plan->ranks[r].chunks[buffer] > most)
            most = plan->ranks[r].chunks[buffer];
    }
    return most;
}

/* The message is the input. If no rank has input, the message is the output; if no rank has output
 * either, the scratch. */
void plan_message_divide(const banyan_plan *plan, uint64_t *blocks, uint64_t *block_chunks)
{
    bool per_rank = plan->collective == BANYAN_REDUCESCATTER || plan->collective == BANYAN_ALLTOALL;
    uint64_t chunks = 0;
    for (int buffer = PLAN_INPUT; buffer < PLAN_BUFFERS && chunks == 0; buffer++)
        chunks = geometry_most_chunks(plan, (plan_buffer)buffer);
    if (plan->collective == BANYAN_CUSTOM)
        *blocks = chunks / plan->block_chunks;
    else
        *blocks = per_rank ? (uint64_t)plan->rank_count : 1;
    *block_chunks = *blocks > 0 ? chunks / *blocks : 0;
}

static banyan_status lay_message(const banyan_plan *plan, size_t elem_bytes, plan_geometry *made)
{
    uint64_t blocks, block_chunks, message = made->message_bytes, unit;
    plan_message_divide(plan, &blocks, &block_chunks);
    if (blocks == 0 && message > 0)
        return error_set(BANYAN_ERR_INVALID, "plan %s has no buffers for a message of %llu bytes",
                         plan->name, ULL(message));
    if (blocks == 0)
        blocks = block_chunks = 1;
    if (message % elem_bytes != 0 || message / elem_bytes % blocks != 0)
        return error_set(BANYAN_ERR_INVALID,
                         "a message of %llu bytes cannot be cut by plan %s (%s) into %llu equal "
                         "parts of elements of %zu bytes",
                         ULL(message), plan->name, plan->collective_name, ULL(blocks), elem_bytes);
    uint64_t block_bytes = message / blocks;
    if (__builtin_mul_overflow(block_chunks, plan->buffer_alignment, &unit) || message > BYTES_MAX)
        return error_set(BANYAN_ERR_INVALID, "a message of %llu bytes in %llu chunks is too long",
                         ULL(message), ULL(blocks * block_chunks));
    uint64_t units = block_bytes / unit + (block_bytes % unit > 0);
    made->chunk_bytes = units * plan->buffer_alignment;
    for (int buffer = PLAN_INPUT; buffer < PLAN_BUFFERS; buffer++) {
        made->buffers[buffer].block_bytes = block_bytes;
        made->buffers[buffer].block_chunks = block_chunks;
    }
    return BANYAN_OK;
}

static banyan_status measure_buffers(const banyan_plan *plan, plan_geometry *made)
{
    for (int buffer = PLAN_INPUT; buffer < PLAN_BUFFERS; buffer++) {
        uint64_t chunks = geometry_most_chunks(plan, (plan_buffer)buffer), room;
        if (__builtin_mul_overflow(chunks, made->chunk_bytes, &room) || room > BYTES_MAX)
            return error_set(BANYAN_ERR_INVALID,
                             "the %s of plan %s has %llu chunks, which is too much for chunks of "
                             "%llu bytes",
                             plan_buffer_word((plan_buffer)buffer), plan->name, ULL(chunks),
                             ULL(made->chunk_bytes));
        made->buffers[buffer].bytes =
            chunks / made->buffers[buffer].block_chunks * made->buffers[buffer].block_bytes;
    }
    return BANYAN_OK;
}

/* The plan's use of scratch. */
typedef struct scratch_use {
    bool data, packets;
} scratch_use;

static void note_operands(const banyan_plan *plan, int rank, const plan_thread_block *block,
                          const plan_op *op, scratch_use *use)
{
    for (uint32_t i = 0; i < op->source_count + op->destination_count; i++) {
        bool source = i < op->source_count;
        uint32_t k = source ? i : i - op->source_count;
        const plan_operand *operand = source ? &op->sources[k] : &op->destinations[k];
        if (plan_operand_where(plan, rank, block, op, operand).buffer != PLAN_SCRATCH)
            continue;
        bool packets = source ? plan_source_is_packets(op, k) : plan_destination_is_packets(op, k);
        use->packets |= packets;
        use->data |= !packets;
    }
}

static void geometry_note_ops(const banyan_plan *plan, int rank, const plan_thread_block *block,
                              const plan_op *ops, uint32_t count, scratch_use *use)
{
    for (uint32_t i = 0; i < count; i++) {
        note_operands(plan, rank, block, &ops[i], use);
        geometry_note_ops(plan, rank, block, ops[i].ops, ops[i].op_count, use);
    }
}

static scratch_use find_use(const banyan_plan *plan)
{
    scratch_use use = {false, false};
    for (int r = 0; r < plan->rank_count; r++) {
        for (uint32_t b = 0; b < plan->ranks[r].block_count; b++) {
            const plan_thread_block *block = &plan->ranks[r].blocks[b];
            geometry_note_ops(plan, r, block, block->ops, block->op_count, &use);
        }
    }
    return use;
}

static banyan_status fail_scratch(const banyan_plan *plan, const plan_geometry *made, int rank,
                                  const plan_thread_block *block, const plan_op *op)
{
    return error_set(BANYAN_ERR_INVALID,
                     "rank %d, thread block %u: %s of %llu chunks of %llu bytes does not fit into "
                     "the %llu bytes of scratch that plan %s reuses, which has %llu for a chunk",
                     rank, block->id, plan_op_name(op->kind),
                     ULL(op->source_count > 0 ? op->sources[0].size : 0), ULL(made->chunk_bytes),
                     ULL(plan->reused_scratch_bytes), plan->name, ULL(made->scratch_stride));
}

/* True if the operation fits reused scratch: outside a loop it needs all its chunks at once, within
 * its share of a unit. */
static bool fits_reused(const banyan_plan *plan, const plan_geometry *made, int rank,
                        const plan_thread_block *block, const plan_op *op, const plan_op *loop)
{
    scratch_use use = {false, false};
    note_operands(plan, rank, block, op, &use);
    if (!use.data && !use.packets)
        return true;
    if (!loop)
        return false;
    uint64_t chunks = op->sources[0].size;
    plan_share room = plan_share_of(chunks * made->scratch_stride, plan->buffer_alignment,
                                    op->group_index, op->group_size);
    plan_share share = plan_share_of(chunks * made->chunk_bytes, plan->buffer_alignment,
                                     op->group_index, op->group_size);
    uint64_t needed = share.end - share.begin;
    if (needed > loop->unit_bytes)
        needed = loop->unit_bytes;
    return needed <= room.end - room.begin;
}

static banyan_status check_reused(const banyan_plan *plan, const plan_geometry *made)
{
    for (int r = 0; r < plan->rank_count; r++) {
        for (uint32_t b = 0; b < plan->ranks[r].block_count; b++) {
            const plan_thread_block *block = &plan->ranks[r].blocks[b];
            for (uint32_t i = 0; i < block->op_count; i++) {
                const plan_op *op = &block->ops[i];
                if (!fits_reused(plan, made, r, block, op, NULL))
                    return fail_scratch(plan, made, r, block, op);
                for (uint32_t k = 0; k < op->op_count; k++) {
                    if (!fits_reused(plan, made, r, block, &op->ops[k], op))
                        return fail_scratch(plan, made, r, block, &op->ops[k]);
                }
            }
        }
    }
    return BANYAN_OK;
}

static banyan_status lay_scratch(const banyan_plan *plan, plan_geometry *made)
{
    uint64_t chunks = geometry_most_chunks(plan, PLAN_SCRATCH),
             halves = plan->double_scratch ? 2 : 1;
    scratch_use use = find_use(plan);
    uint64_t parts = (use.packets ? 2 : 0) + (use.data || !use.packets ? 1 : 0);
    made->scratch_data_chunks = use.packets ? 2 * chunks : 0;
    made->scratch_stride = made->chunk_bytes;
    made->scratch_half_bytes = parts * chunks * made->scratch_stride;
    if (plan->reuse_resources && chunks > 0) {
        uint64_t half = plan->reused_scratch_bytes / halves;
        uint64_t stride = half / parts / chunks / plan->buffer_alignment * plan->buffer_alignment;
        if (half > BYTES_MAX)
            return error_set(BANYAN_ERR_INVALID, "plan %s has %llu bytes of scratch", plan->name,
                             ULL(plan->reused_scratch_bytes));
        made->scratch_half_bytes = half;
        if (stride < made->scratch_stride) {
            made->scratch_stride = stride;
            RETURN_IF_FAILED(check_reused(plan, made));
        }
    }
    made->buffers[PLAN_SCRATCH].bytes = made->scratch_half_bytes * halves;
    return BANYAN_OK;
}

static banyan_status check_loops(const banyan_plan *plan, const plan_geometry *made)
{
    for (int r = 0; r < plan->rank_count; r++) {
        for (uint32_t b = 0; b < plan->ranks[r].block_count; b++) {
            const plan_thread_block *block = &plan->ranks[r].blocks[b];
            for (uint32_t i = 0; i < block->op_count; i++) {
                const plan_op *op = &block->ops[i];
                uint64_t bytes;
                if (op->kind != PLAN_PIPELINE)
                    continue;
                if (__builtin_mul_overflow(op->loop_chunks, made->chunk_bytes, &bytes) ||
                    bytes > BYTES_MAX)
                    return error_set(BANYAN_ERR_INVALID,
                                     "rank %d, thread block %u: a loop over %llu chunks of %llu "
                                     "bytes is too long",
                                     r, block->id, ULL(op->loop_chunks), ULL(made->chunk_bytes));
            }
        }
    }
    return BANYAN_OK;
}

uint64_t plan_geometry_iterations(const plan_geometry *geometry, const plan_op *pipeline)
{
    if (pipeline->kind != PLAN_PIPELINE)
        return 1;
    uint64_t bytes = pipeline->loop_chunks * geometry->chunk_bytes;
    return bytes / pipeline->unit_bytes + (bytes % pipeline->unit_bytes > 0);
}

static uint64_t body_steps(const plan_op *loop)
{
    uint64_t steps = 1;
    for (uint32_t i = 0; i < loop->op_count; i++) {
        const plan_op *op = &loop->ops[i];
        steps += (uint64_t)1 + op->source_count + op->destination_count + op->channel_count +
                 op->semaphore_count;
    }
    return steps;
}

uint64_t plan_geometry_loop_steps(const plan_geometry *geometry, const banyan_plan *plan)
{
    uint64_t steps = 0;
    for (int r = 0; r < plan->rank_count; r++) {
        for (uint32_t b = 0; b < plan->ranks[r].block_count; b++) {
            const plan_thread_block *block = &plan->ranks[r].blocks[b];
            for (uint32_t i = 0; i < block->op_count; i++) {
                uint64_t all;
                if (block->ops[i].kind == PLAN_PIPELINE &&
                    (__builtin_mul_overflow(plan_geometry_iterations(geometry, &block->ops[i]),
                                            body_steps(&block->ops[i]), &all) ||
                     __builtin_add_overflow(steps, all, &steps)))
                    return UINT64_MAX;
            }
        }
    }
    return steps;
}

/* Compute all that does not depend on operations, of which a plan may have millions. */
static banyan_status lay_buffers(const banyan_plan *plan, uint64_t message_bytes, size_t elem_bytes,
                                 plan_geometry *made)
{
    *made = (plan_geometry){.message_bytes = message_bytes};
    if (elem_bytes == 0 || plan->buffer_alignment % elem_bytes != 0)
        return error_set(BANYAN_ERR_INVALID,
                         "plan %s aligns to %llu bytes, which holds no whole elements of %zu bytes",
                         plan->name, ULL(plan->buffer_alignment), elem_bytes);
    RETURN_IF_FAILED(lay_message(plan, elem_bytes, made));
    return measure_buffers(plan, made);
}

banyan_status plan_geometry_make(const banyan_plan *plan, uint64_t message_bytes, size_t elem_bytes,
                                 plan_geometry *geometry)
{
    plan_geometry made;
    RETURN_IF_FAILED(lay_buffers(plan, message_bytes, elem_bytes, &made));
    RETURN_IF_FAILED(lay_scratch(plan, &made));
    RETURN_IF_FAILED(check_loops(plan, &made));
    *geometry = made;
    return BANYAN_OK;
}

banyan_status plan_geometry_largest(const banyan_plan *plan, uint64_t message_bytes,
                                    plan_geometry *geometry)
{
    uint64_t blocks, block_chunks;
    plan_message_divide(plan, &blocks, &block_chunks);
    uint64_t more = blocks > 0 ? (blocks - message_bytes % blocks) % blocks : 0;
    if (message_bytes > UINT64_MAX - more)
        more = 0;
    return plan_geometry_make(plan, message_bytes + more, 1, geometry);
}

uint64_t plan_geometry_bytes(const plan_geometry *geometry, const banyan_plan *plan, int rank,
                             plan_buffer buffer)
{
    uint64_t chunks = plan->ranks[rank].chunks[buffer];
    if (buffer == PLAN_SCRATCH)
        return geometry->buffers[buffer].bytes;
    return chunks / geometry->buffers[buffer].block_chunks * geometry->buffers[buffer].block_bytes;
}

banyan_status banyan_plan_sizes(const banyan_plan *plan, int rank, uint64_t message_bytes,
                                uint64_t *input_bytes, uint64_t *output_bytes)
{
    plan_geometry geometry;
    if (rank < 0 || rank >= plan->rank_count)
        return error_set(BANYAN_ERR_INVALID, "plan %s has %d ranks, and none with the number %d",
                         plan->name, plan->rank_count, rank);
    RETURN_IF_FAILED(lay_buffers(plan, message_bytes, 1, &geometry));
    *input_bytes = plan_geometry_bytes(&geometry, plan, rank, PLAN_INPUT);
    *output_bytes = plan_geometry_bytes(&geometry, plan, rank, PLAN_OUTPUT);
    return BANYAN_OK;
}
