#include "check/classes.h"

#include <inttypes.h>

/* Limit of replayed operations, with loops unrolled, in one run of one class. */
#define PLAYED_MOST (UINT64_C(1) << 21)
/* Limit of distinct loops that get classes of their own. */
#define LOOPS_MOST 8

/* True when a loop that reduces steps in units that break elements. */
static bool loops_break_elems(const banyan_plan *plan, size_t elem)
{
    for (plan_cursor at = {.plan = plan}; plan_cursor_next(&at);) {
        if (at.loop && plan_op_reduces(at.op->kind) && at.loop->unit_bytes % elem != 0)
            return true;
    }
    return false;
}

size_t class_elem_bytes(const banyan_plan *plan)
{
    size_t elem = CLASS_ELEM_BYTES;
    while (plan->buffer_alignment % elem != 0 || (elem > 1 && loops_break_elems(plan, elem)))
        elem /= 2;
    return elem;
}

typedef struct survey {
    const plan_op *loops[LOOPS_MOST]; /* distinct in unit or chunks */
    size_t loop_count;
    uint32_t widest_group;
} survey;

static void note_loop(survey *seen, const plan_op *loop)
{
    for (size_t i = 0; i < seen->loop_count; i++) {
        if (seen->loops[i]->unit_bytes == loop->unit_bytes &&
            seen->loops[i]->loop_chunks == loop->loop_chunks)
            return;
    }
    if (seen->loop_count < LOOPS_MOST && loop->loop_chunks > 0)
        seen->loops[seen->loop_count++] = loop;
}

static survey survey_plan(const banyan_plan *plan)
{
    survey seen = {.loop_count = 0};
    for (plan_cursor at = {.plan = plan}; plan_cursor_next(&at);) {
        if (at.op->group_size > seen.widest_group)
            seen.widest_group = at.op->group_size;
        if (at.op->kind == PLAN_PIPELINE)
            note_loop(&seen, at.op);
    }
    return seen;
}

static uint64_t played_of(const plan_geometry *geometry, const banyan_plan *plan)
{
    uint64_t played = 0;
    for (plan_cursor at = {.plan = plan}; plan_cursor_next(&at);) {
        uint64_t times = plan_geometry_iterations(geometry, at.loop ? at.loop : at.op);
        if (times > PLAYED_MOST)
            return UINT64_MAX;
        played += times;
    }
    return played;
}

static banyan_status visit_nothing(void *context, const plan_piece *piece)
{
    (void)context, (void)piece;
    return BANYAN_OK;
}

/* A share of reused scratch may become empty. */
static banyan_status cut_all(const plan_geometry *geometry, const banyan_plan *plan)
{
    for (plan_cursor at = {.plan = plan}; plan_cursor_next(&at);)
        RETURN_IF_FAILED(plan_geometry_cut(geometry, plan, at.rank, at.block, at.op, at.loop, 0,
                                           visit_nothing, NULL));
    return BANYAN_OK;
}

banyan_status size_classes_add(const banyan_plan *plan, uint64_t message_bytes, size_classes *made,
                               size_t *skipped)
{
    size_class new = {.message_bytes = message_bytes};
    for (size_t i = 0; i < made->count; i++) {
        if (made->data[i].message_bytes == message_bytes)
            return BANYAN_OK;
    }
    RETURN_IF_FAILED(
        plan_geometry_make(plan, message_bytes, class_elem_bytes(plan), &new.geometry));
    if (played_of(&new.geometry, plan) > PLAYED_MOST) {
        ++*skipped;
        return BANYAN_OK;
    }
    RETURN_IF_FAILED(cut_all(&new.geometry, plan));
    new.whole = new.geometry.buffers[PLAN_INPUT].block_bytes ==
                new.geometry.chunk_bytes *new.geometry.buffers[PLAN_INPUT].block_chunks;
    return array_push(made, new) ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
}

typedef struct class_maker {
    const banyan_plan *plan;
    uint64_t blocks, block_chunks;
    size_classes *made;
    size_t *skipped;
} class_maker;

/* Add a class with blocks of this many bytes, if the plan can be cut so. */
static banyan_status classes_add_block(class_maker *to, uint64_t block_bytes)
{
    uint64_t message;
    if (block_bytes == 0 || __builtin_mul_overflow(block_bytes, to->blocks, &message))
        return BANYAN_OK;
    banyan_status status = size_classes_add(to->plan, message, to->made, to->skipped);
    return status == BANYAN_ERR_INVALID ? BANYAN_OK : status;
}

/* Add classes with chunks of this many bytes: all whole; the last one clipped; half of them empty.
 */
static banyan_status add_stride(class_maker *to, uint64_t stride)
{
    uint64_t alignment = to->plan->buffer_alignment, elem = class_elem_bytes(to->plan), whole;
    stride = (stride + alignment - 1) / alignment * alignment;
    if (__builtin_mul_overflow(stride, to->block_chunks, &whole))
        return BANYAN_OK;
    RETURN_IF_FAILED(classes_add_block(to, whole));
    return classes_add_block(to, whole - elem);
}

static banyan_status classes_add_loop(class_maker *to, const plan_op *loop)
{
    uint64_t alignment = to->plan->buffer_alignment;
    for (uint64_t iterations = 1; iterations <= 3; iterations++) {
        uint64_t bytes;
        if (__builtin_mul_overflow(loop->unit_bytes, iterations, &bytes))
            return BANYAN_OK;
        RETURN_IF_FAILED(add_stride(to, bytes / loop->loop_chunks));
        if (iterations == 2)
            RETURN_IF_FAILED(add_stride(to, bytes / loop->loop_chunks + alignment));
    }
    return BANYAN_OK;
}

/* Add classes that go around reused scratch once, and a few units more. */
static banyan_status add_rounds(class_maker *to, const survey *seen)
{
    plan_geometry geometry;
    uint64_t unit = 0;
    for (size_t i = 0; i < seen->loop_count; i++)
        unit = seen->loops[i]->unit_bytes > unit ? seen->loops[i]->unit_bytes : unit;
    if (!to->plan->reuse_resources || unit == 0)
        return BANYAN_OK;
    uint64_t halves = to->plan->double_scratch ? 2 : 1, message;
    if (__builtin_mul_overflow(to->plan->reused_scratch_bytes / halves, to->blocks, &message) ||
        plan_geometry_make(to->plan, message, class_elem_bytes(to->plan), &geometry) != BANYAN_OK)
        return BANYAN_OK;
    uint64_t fits = geometry.scratch_stride < geometry.chunk_bytes
                        ? geometry.scratch_stride
                        : to->plan->reused_scratch_bytes / halves;
    return add_stride(to, fits + 2 * unit);
}

static banyan_status classes_add_all(class_maker *to)
{
    survey seen = survey_plan(to->plan);
    uint64_t alignment = to->plan->buffer_alignment, chunks = to->block_chunks;
    RETURN_IF_FAILED(classes_add_block(to, class_elem_bytes(to->plan)));
    RETURN_IF_FAILED(add_stride(to, alignment));
    RETURN_IF_FAILED(add_stride(to, 2 * alignment));
    RETURN_IF_FAILED(classes_add_block(to, (chunks + 1) * alignment));
    if (seen.widest_group > 0) {
        RETURN_IF_FAILED(add_stride(to, seen.widest_group * alignment));
        RETURN_IF_FAILED(add_stride(to, (seen.widest_group + 1) * alignment));
    }
    for (size_t i = 0; i < seen.loop_count; i++)
        RETURN_IF_FAILED(classes_add_loop(to, seen.loops[i]));
    return add_rounds(to, &seen);
}

static int compare_classes(const void *left, const void *right)
{
    const size_class *a = left, *b = right;
    return (a->message_bytes > b->message_bytes) - (a->message_bytes < b->message_bytes);
}

/* Bound the steps in loops, since a small file can ask for any number of them; steps that the file
 * lists are not bounded. The smallest messages come first. */
static void keep_steps(const banyan_plan *plan, uint64_t max_steps, size_classes *made,
                       size_t *skipped)
{
    uint64_t left = max_steps;
    size_t kept = 0;
    for (size_t i = 0; i < made->count; i++) {
        uint64_t steps = plan_geometry_loop_steps(&made->data[i].geometry, plan);
        if (steps > left)
            continue;
        left -= steps;
        made->data[kept++] = made->data[i];
    }
    *skipped += made->count - kept;
    made->count = kept;
}

banyan_status size_classes_make(const banyan_plan *plan, uint64_t max_steps, size_classes *made,
                                size_t *skipped)
{
    class_maker to = {.plan = plan, .made = made, .skipped = skipped};
    *skipped = 0;
    plan_message_divide(plan, &to.blocks, &to.block_chunks);
    if (to.blocks == 0)
        return size_classes_add(plan, 0, made, skipped);
    RETURN_IF_FAILED(classes_add_all(&to));
    if (made->count == 0)
        return error_set(BANYAN_ERR_INVALID,
                         "plan %s cannot run on messages of any of the sizes it would be checked "
                         "for",
                         plan->name);
    qsort(made->data, made->count, sizeof *made->data, compare_classes);
    keep_steps(plan, max_steps, made, skipped);
    if (made->count == 0)
        return error_set(BANYAN_ERR_UNSUPPORTED,
                         "the loops of plan %s make more than %" PRIu64
                         " steps with every size it would be checked for, unless max_steps "
                         "(--max-steps) allows more",
                         plan->name, max_steps);
    return BANYAN_OK;
}
