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

static void note_operands(const plan_cursor *at, scratch_use *use)
{
    for (uint32_t i = 0; i < plan_operand_count(at->op); i++) {
        const plan_operand *operand = plan_operand_at(at->op, i);
        if (plan_operand_where(at->plan, at->rank, at->block, at->op, operand).buffer !=
            PLAN_SCRATCH)
            continue;
        bool packets = plan_operand_is_packets(at->op, i);
        use->packets |= packets;
        use->data |= !packets;
    }
}

/* True if the operation fits reused scratch: outside a loop it needs all its chunks at once, within
 * its share of a unit. */
static bool fits_reused(const plan_cursor *at, const plan_geometry *made)
{
    const plan_op *op = at->op;
    scratch_use use = {false, false};
    note_operands(at, &use);
    if (!use.data && !use.packets)
        return true;
    if (!at->loop)
        return false;
    uint64_t chunks = op->sources[0].size, alignment = at->plan->buffer_alignment;
    plan_share room =
        plan_share_of(chunks * made->scratch_stride, alignment, op->group_index, op->group_size);
    plan_share share =
        plan_share_of(chunks * made->chunk_bytes, alignment, op->group_index, op->group_size);
    uint64_t needed = share.end - share.begin;
    if (needed > at->loop->unit_bytes)
        needed = at->loop->unit_bytes;
    return needed <= room.end - room.begin;
}

static banyan_status check_reused(const banyan_plan *plan, const plan_geometry *made)
{
    for (plan_cursor at = {.plan = plan}; plan_cursor_next(&at);) {
        if (!fits_reused(&at, made))
            return error_set(
                BANYAN_ERR_INVALID,
                "rank %d, thread block %u: %s of %llu chunks of %llu bytes does not fit into "
                "the %llu bytes of scratch that plan %s reuses, which has %llu for a chunk",
                at.rank, at.block->id, plan_op_name(at.op->kind),
                ULL(at.op->source_count > 0 ? at.op->sources[0].size : 0), ULL(made->chunk_bytes),
                ULL(plan->reused_scratch_bytes), plan->name, ULL(made->scratch_stride));
    }
    return BANYAN_OK;
}

static banyan_status lay_scratch(const banyan_plan *plan, plan_geometry *made)
{
    uint64_t chunks = geometry_most_chunks(plan, PLAN_SCRATCH),
             halves = plan->double_scratch ? 2 : 1;
    scratch_use use = {false, false};
    for (plan_cursor at = {.plan = plan}; plan_cursor_next(&at);)
        note_operands(&at, &use);
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
    for (plan_cursor at = {.plan = plan}; plan_cursor_next(&at);) {
        uint64_t bytes;
        if (at.op->kind == PLAN_PIPELINE &&
            (__builtin_mul_overflow(at.op->loop_chunks, made->chunk_bytes, &bytes) ||
             bytes > BYTES_MAX))
            return error_set(BANYAN_ERR_INVALID,
                             "rank %d, thread block %u: a loop over %llu chunks of %llu bytes is "
                             "too long",
                             at.rank, at.block->id, ULL(at.op->loop_chunks),
                             ULL(made->chunk_bytes));
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

uint64_t plan_geometry_loop_steps(const plan_geometry *geometry, const banyan_plan *plan)
{
    uint64_t steps = 0, all;
    for (plan_cursor at = {.plan = plan}; plan_cursor_next(&at);) {
        const plan_op *loop = at.loop ? at.loop : at.op;
        uint64_t once = at.loop ? (uint64_t)1 + plan_operand_count(at.op) + at.op->channel_count +
                                      at.op->semaphore_count
                                : 1;
        if (loop->kind == PLAN_PIPELINE &&
            (__builtin_mul_overflow(plan_geometry_iterations(geometry, loop), once, &all) ||
             __builtin_add_overflow(steps, all, &steps)))
            return UINT64_MAX;
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
