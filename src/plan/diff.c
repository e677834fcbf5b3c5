#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/text/text.h"
#include "plan/op.h"

#define ULL(number) ((unsigned long long)(number))

typedef struct differ {
    const banyan_plan *a, *b;
    bytes_writer text;
    size_t most, count;
} differ;

/* Count a difference; true if it is reported. */
static bool diff_report(differ *diff)
{
    return diff->count++ < diff->most;
}

static void diff_note(differ *diff, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void diff_note(differ *diff, const char *format, ...)
{
    char *line;
    if (!diff_report(diff))
        return;
    va_list arguments;
    va_start(arguments, format);
    int length = vasprintf(&line, format, arguments);
    va_end(arguments);
    if (length < 0) {
        diff->text.failed = true;
        return;
    }
    text_print(&diff->text, "%s\n", line);
    free(line);
}

static void note_text(differ *diff, const char *what, const char *a, const char *b)
{
    if (strcmp(a, b) != 0)
        diff_note(diff, "%s: %s, %s", what, a, b);
}

static void note_number(differ *diff, const char *what, uint64_t a, uint64_t b)
{
    if (a != b)
        diff_note(diff, "%s: %llu, %llu", what, ULL(a), ULL(b));
}

static bool diff_same_operands(const plan_operand *a, const plan_operand *b, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        bool same_buffer = a[i].place == PLAN_LOCAL ? a[i].buffer == b[i].buffer
                                                    : a[i].reference == b[i].reference;
        if (a[i].place != b[i].place || !same_buffer || a[i].index != b[i].index ||
            a[i].size != b[i].size)
            return false;
    }
    return true;
}

static bool same_numbers(const uint32_t *a, uint32_t a_count, const uint32_t *b, uint32_t b_count)
{
    return a_count == b_count && (a_count == 0 || memcmp(a, b, a_count * sizeof *a) == 0);
}

/* Compare two operations, without the operations in a loop. */
static bool same_op(const plan_op *a, const plan_op *b)
{
    return a->kind == b->kind && a->channel_type == b->channel_type &&
           a->reduce_op == b->reduce_op && a->source_count == b->source_count &&
           a->destination_count == b->destination_count &&
           diff_same_operands(a->sources, b->sources, a->source_count) &&
           diff_same_operands(a->destinations, b->destinations, a->destination_count) &&
           same_numbers(a->channels, a->channel_count, b->channels, b->channel_count) &&
           same_numbers(a->semaphores, a->semaphore_count, b->semaphores, b->semaphore_count) &&
           a->barrier == b->barrier && a->barrier_members == b->barrier_members &&
           a->group_index == b->group_index && a->group_size == b->group_size &&
           a->unit_bytes == b->unit_bytes && a->loop_chunks == b->loop_chunks;
}

static bool same_op_whole(const plan_op *a, const plan_op *b)
{
    if (!same_op(a, b) || a->op_count != b->op_count)
        return false;
    for (uint32_t i = 0; i < a->op_count; i++) {
        if (!same_op(&a->ops[i], &b->ops[i]))
            return false;
    }
    return true;
}

/* Two lists of operations, and their thread blocks. */
typedef struct op_lists {
    const plan_op *a, *b;
    uint32_t a_count, b_count;
    const plan_thread_block *a_block, *b_block;
    int rank;
    const char *where; /* "rank 2, thread block 0, operation " */
} op_lists;

static void diff_add_op(differ *diff, const banyan_plan *plan, const op_lists *lists,
                        const plan_thread_block *block, const plan_op *op)
{
    if (op)
        op_text_add(&diff->text, plan, lists->rank, block, op);
    else
        text_add(&diff->text, "nothing");
}

static void compare_ops(differ *diff, const op_lists *lists);

static void compare_loops(differ *diff, const op_lists *lists, uint32_t at, const plan_op *a,
                          const plan_op *b)
{
    char where[128];
    snprintf(where, sizeof where, "%s%u.", lists->where, at);
    op_lists inner = *lists;
    inner.a = a->ops;
    inner.b = b->ops;
    inner.a_count = a->op_count;
    inner.b_count = b->op_count;
    inner.where = where;
    compare_ops(diff, &inner);
}

/* Skip the common start and the common end; compare the operations between them one by one. */
static void compare_ops(differ *diff, const op_lists *lists)
{
    uint32_t a_count = lists->a_count, b_count = lists->b_count, first = 0;
    while (first < a_count && first < b_count && same_op_whole(&lists->a[first], &lists->b[first]))
        first++;
    while (a_count > first && b_count > first &&
           same_op_whole(&lists->a[a_count - 1], &lists->b[b_count - 1])) {
        a_count--;
        b_count--;
    }
    for (uint32_t i = first; i < a_count || i < b_count; i++) {
        const plan_op *a = i < a_count ? &lists->a[i] : NULL;
        const plan_op *b = i < b_count ? &lists->b[i] : NULL;
        if (a && b && same_op_whole(a, b))
            continue;
        if (a && b && a->kind == PLAN_PIPELINE && same_op(a, b)) {
            compare_loops(diff, lists, i, a, b);
        } else if (diff_report(diff)) {
            text_print(&diff->text, "%s%u: ", lists->where, i);
            diff_add_op(diff, diff->a, lists, lists->a_block, a);
            text_add(&diff->text, " | ");
            diff_add_op(diff, diff->b, lists, lists->b_block, b);
            text_add(&diff->text, "\n");
        }
    }
}

static void compare_blocks(differ *diff, int r, uint32_t number)
{
    const plan_thread_block *a = &diff->a->ranks[r].blocks[number];
    const plan_thread_block *b = &diff->b->ranks[r].blocks[number];
    char where[96];
    for (int type = 0; type < PLAN_CHANNEL_TYPES; type++) {
        const char *name = plan_channel_name((plan_channel_type)type);
        if (!same_numbers(a->channels[type], a->channel_count[type], b->channels[type],
                          b->channel_count[type]))
            diff_note(diff, "rank %d, thread block %u: other %s channels", r, number, name);
        if (!same_numbers(a->remote_buffers[type], a->remote_buffer_count[type],
                          b->remote_buffers[type], b->remote_buffer_count[type]))
            diff_note(diff, "rank %d, thread block %u: other remote buffers of %s channels", r,
                      number, name);
    }
    snprintf(where, sizeof where, "rank %d, thread block %u, operation ", r, number);
    op_lists lists = {a->ops, b->ops, a->op_count, b->op_count, a, b, r, where};
    compare_ops(diff, &lists);
}

static bool same_switch(const plan_switch *a, const plan_switch *b)
{
    return a->buffer == b->buffer && a->rank_count == b->rank_count &&
           memcmp(a->ranks, b->ranks, (size_t)a->rank_count * sizeof *a->ranks) == 0;
}

static void compare_channels(differ *diff, int r)
{
    const plan_rank *a = &diff->a->ranks[r], *b = &diff->b->ranks[r];
    for (int type = PLAN_MEMORY; type < PLAN_CHANNEL_TYPES; type++) {
        const char *name = plan_channel_name((plan_channel_type)type);
        if (a->channel_count[type] != b->channel_count[type]) {
            diff_note(diff, "rank %d: %u %s channels, %u", r, a->channel_count[type], name,
                      b->channel_count[type]);
            continue;
        }
        for (uint32_t i = 0; i < a->channel_count[type]; i++) {
            bool same = type == PLAN_SWITCH ? same_switch(&a->switches[i], &b->switches[i])
                                            : a->peers[type][i] == b->peers[type][i];
            if (!same)
                diff_note(diff, "rank %d, %s channel %u: to other ranks", r, name, i);
        }
    }
}

static void compare_remote_buffers(differ *diff, int r)
{
    const plan_rank *a = &diff->a->ranks[r], *b = &diff->b->ranks[r];
    if (a->remote_buffer_count != b->remote_buffer_count) {
        diff_note(diff, "rank %d: %u remote buffers, %u", r, a->remote_buffer_count,
                  b->remote_buffer_count);
        return;
    }
    for (uint32_t i = 0; i < a->remote_buffer_count; i++) {
        const plan_remote_buffer *first = &a->remote_buffers[i], *second = &b->remote_buffers[i];
        if (first->rank != second->rank || first->buffer != second->buffer ||
            first->access != second->access)
            diff_note(diff, "rank %d, remote buffer %u: rank %d's %s, rank %d's %s%s", r, i,
                      first->rank, plan_buffer_word(first->buffer), second->rank,
                      plan_buffer_word(second->buffer),
                      first->access != second->access ? ", for other channels" : "");
    }
}

static void diff_compare_ranks(differ *diff, int r)
{
    const plan_rank *a = &diff->a->ranks[r], *b = &diff->b->ranks[r];
    for (int buffer = 0; buffer < PLAN_BUFFERS; buffer++) {
        if (a->chunks[buffer] != b->chunks[buffer])
            diff_note(diff, "rank %d, %s chunks: %llu, %llu", r,
                      plan_buffer_word((plan_buffer)buffer), ULL(a->chunks[buffer]),
                      ULL(b->chunks[buffer]));
    }
    compare_channels(diff, r);
    compare_remote_buffers(diff, r);
    if (a->semaphore_count != b->semaphore_count)
        diff_note(diff, "rank %d: %u semaphores, %u", r, a->semaphore_count, b->semaphore_count);
    for (uint32_t i = 0; i < a->semaphore_count && i < b->semaphore_count; i++) {
        if (a->semaphores[i] != b->semaphores[i])
            diff_note(diff, "rank %d, semaphore %u: begins at %llu, %llu", r, i,
                      ULL(a->semaphores[i]), ULL(b->semaphores[i]));
    }
    if (a->block_count != b->block_count)
        diff_note(diff, "rank %d: %u thread blocks, %u", r, a->block_count, b->block_count);
    for (uint32_t i = 0; i < a->block_count && i < b->block_count; i++)
        compare_blocks(diff, r, i);
}

static bool same_contributions(const plan_expected *a, const plan_expected *b)
{
    if (a->count != b->count)
        return false;
    for (size_t i = 0; i < a->count; i++) {
        if (a->contributions[i].rank != b->contributions[i].rank ||
            a->contributions[i].chunk != b->contributions[i].chunk)
            return false;
    }
    return true;
}

/* Compare a rank with equally many output chunks in both plans. */
static void compare_expected_rank(differ *diff, int r)
{
    static const plan_expected nothing;
    const plan_expected *a = diff->a->expected ? diff->a->expected[r] : NULL;
    const plan_expected *b = diff->b->expected ? diff->b->expected[r] : NULL;
    uint64_t chunks = a || b ? diff->a->ranks[r].chunks[PLAN_OUTPUT] : 0;
    for (uint64_t i = 0; i < chunks; i++) {
        if (!same_contributions(a ? &a[i] : &nothing, b ? &b[i] : &nothing))
            diff_note(diff, "rank %d, output chunk %llu: another result is expected", r, ULL(i));
    }
}

static void compare_expected(differ *diff)
{
    const banyan_plan *a = diff->a, *b = diff->b;
    if (a->expected && b->expected && a->expected_op != b->expected_op)
        note_text(diff, "expected reduction", banyan_reduce_op_name(a->expected_op),
                  banyan_reduce_op_name(b->expected_op));
    for (int r = 0; r < a->rank_count; r++) {
        if (a->ranks[r].chunks[PLAN_OUTPUT] == b->ranks[r].chunks[PLAN_OUTPUT])
            compare_expected_rank(diff, r);
    }
}

static void compare_tags(differ *diff)
{
    const banyan_plan *a = diff->a, *b = diff->b;
    for (size_t i = 0; i < a->tag_count; i++) {
        const char *other = banyan_plan_tag(b, a->tags[i].key);
        if (!other || strcmp(other, a->tags[i].value) != 0)
            diff_note(diff, "tag %s: %s, %s", a->tags[i].key, a->tags[i].value,
                      other ? other : "(none)");
    }
    for (size_t i = 0; i < b->tag_count; i++) {
        if (!banyan_plan_tag(a, b->tags[i].key))
            diff_note(diff, "tag %s: (none), %s", b->tags[i].key, b->tags[i].value);
    }
}

static const char *diff_truth(bool value)
{
    return value ? "yes" : "no";
}

static void compare_heads(differ *diff)
{
    const banyan_plan *a = diff->a, *b = diff->b;
    bool same_kind = a->collective == b->collective;
    note_text(diff, "name", a->name, b->name);
    note_text(diff, "collective", a->collective_name, b->collective_name);
    if (same_kind && (a->collective == BANYAN_BROADCAST || a->collective == BANYAN_REDUCE))
        note_number(diff, "root", (uint64_t)a->root, (uint64_t)b->root);
    if (same_kind && a->collective == BANYAN_SENDRECV)
        note_number(diff, "shift", (uint64_t)a->shift, (uint64_t)b->shift);
    note_text(diff, "protocol", a->protocol == BANYAN_LL ? "LL" : "Simple",
              b->protocol == BANYAN_LL ? "LL" : "Simple");
    note_text(diff, "in place", diff_truth(a->in_place), diff_truth(b->in_place));
    note_text(diff, "reuse of resources", diff_truth(a->reuse_resources),
              diff_truth(b->reuse_resources));
    if (a->reuse_resources && b->reuse_resources)
        note_number(diff, "bytes of reused scratch", a->reused_scratch_bytes,
                    b->reused_scratch_bytes);
    note_number(diff, "chunks of a block", a->block_chunks, b->block_chunks);
    note_text(diff, "double scratch", diff_truth(a->double_scratch), diff_truth(b->double_scratch));
    note_text(diff, "executor", banyan_plan_executor_name(a->executor),
              banyan_plan_executor_name(b->executor));
    note_number(diff, "threads per block", (uint64_t)a->threads_per_block,
                (uint64_t)b->threads_per_block);
    note_number(diff, "buffer alignment", a->buffer_alignment, b->buffer_alignment);
    note_number(diff, "smallest message", a->min_message_bytes, b->min_message_bytes);
    note_number(diff, "largest message", a->max_message_bytes, b->max_message_bytes);
    compare_tags(diff);
}

banyan_status banyan_plan_diff(const banyan_plan *a, const banyan_plan *b, size_t most, char **text,
                               size_t *differences)
{
    differ diff = {.a = a, .b = b, .most = most};
    char *finished;
    compare_heads(&diff);
    if (a->rank_count == b->rank_count) {
        for (int r = 0; r < a->rank_count; r++)
            diff_compare_ranks(&diff, r);
        compare_expected(&diff);
    } else {
        diff_note(&diff, "ranks: %d, %d", a->rank_count, b->rank_count);
    }
    RETURN_IF_FAILED(text_finish(&diff.text, &finished, NULL));
    *text = finished;
    *differences = diff.count;
    return BANYAN_OK;
}
