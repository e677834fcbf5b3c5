#include <inttypes.h>

#include "core/text/text.h"
#include "plan/op.h"

static const char *list_plural(uint64_t count)
{
    return count == 1 ? "" : "s";
}

static void list_head(bytes_writer *text, const banyan_plan *plan)
{
    text_print(text, "%s: %s of %d rank%s", plan->name, plan->collective_name, plan->rank_count,
               list_plural((uint64_t)plan->rank_count));
    if (plan->collective == BANYAN_BROADCAST || plan->collective == BANYAN_REDUCE)
        text_print(text, ", root %d", plan->root);
    if (plan->collective == BANYAN_SENDRECV)
        text_print(text, ", to the rank %d further on", plan->shift);
    text_print(text, "%s, %s protocol\n", plan->in_place ? ", in place" : "",
               plan->protocol == BANYAN_LL ? "LL" : "simple");
    text_print(text, "%d threads a block, buffers aligned to %" PRIu64 " byte%s",
               plan->threads_per_block, plan->buffer_alignment,
               list_plural(plan->buffer_alignment));
    if (plan->min_message_bytes > 0)
        text_print(text, ", messages from %" PRIu64 " bytes", plan->min_message_bytes);
    if (plan->max_message_bytes < UINT64_MAX)
        text_print(text, ", messages up to %" PRIu64 " bytes", plan->max_message_bytes);
    if (plan->reuse_resources)
        text_print(text, ", %" PRIu64 " bytes of scratch reused", plan->reused_scratch_bytes);
    if (plan->block_chunks > 1)
        text_print(text, ", blocks of %" PRIu64 " chunks", plan->block_chunks);
    text_print(text, "%s%s\n", plan->double_scratch ? ", double scratch" : "",
               plan->executor == BANYAN_EXECUTOR_MSCCLPP ? ", for MSCCL++'s executor" : "");
    for (size_t i = 0; i < plan->tag_count; i++)
        text_print(text, "tag %s: %s\n", plan->tags[i].key, plan->tags[i].value);
}

static void list_channels(bytes_writer *text, const plan_rank *rank, plan_channel_type type)
{
    for (uint32_t i = 0; i < rank->channel_count[type]; i++) {
        if (i == 0)
            text_print(text, "  %s channels:", plan_channel_name(type));
        text_print(text, "%s %" PRIu32 " to %d", i > 0 ? "," : "", i, rank->peers[type][i]);
    }
    if (rank->channel_count[type] > 0)
        text_add(text, "\n");
}

static void list_switches(bytes_writer *text, const plan_rank *rank)
{
    for (uint32_t i = 0; i < rank->channel_count[PLAN_SWITCH]; i++) {
        const plan_switch *group = &rank->switches[i];
        text_print(text, "  switch channel %" PRIu32 ": the %s of ranks", i,
                   plan_buffer_word(group->buffer));
        for (int k = 0; k < group->rank_count; k++)
            text_print(text, "%s %d", k > 0 ? "," : "", group->ranks[k]);
        text_add(text, "\n");
    }
}

static void list_semaphores(bytes_writer *text, const plan_rank *rank)
{
    for (uint32_t i = 0; i < rank->semaphore_count; i++)
        text_print(text, "%s %" PRIu32 " at %" PRIu64, i == 0 ? "  semaphores:" : ",", i,
                   rank->semaphores[i]);
    if (rank->semaphore_count > 0)
        text_add(text, "\n");
}

/* Operations have their numbers in the file; in a loop, after a point. */
static void list_ops(bytes_writer *text, const banyan_plan *plan, int rank,
                     const plan_thread_block *block)
{
    for (uint32_t i = 0; i < block->op_count; i++) {
        const plan_op *op = &block->ops[i];
        text_print(text, "  %6" PRIu32 "    ", i);
        op_text_add(text, plan, rank, block, op);
        text_add(text, "\n");
        for (uint32_t k = 0; k < op->op_count; k++) {
            text_print(text, "  %6" PRIu32 ".%-3" PRIu32 "  ", i, k);
            op_text_add(text, plan, rank, block, &op->ops[k]);
            text_add(text, "\n");
        }
    }
}

/* A built-in collective's name already defines its output. */
static void list_expected(bytes_writer *text, const banyan_plan *plan, int r)
{
    if (!plan->expected || !plan->expected[r])
        return;
    for (uint64_t chunk = 0; chunk < plan->ranks[r].chunks[PLAN_OUTPUT]; chunk++) {
        const plan_expected *expected = &plan->expected[r][chunk];
        if (expected->count == 0)
            continue;
        text_print(text, "  o[%" PRIu64 "] must be", chunk);
        if (expected->count > 1)
            text_print(text, " %s", banyan_reduce_op_name(plan->expected_op));
        for (size_t i = 0; i < expected->count; i++)
            text_print(text, "%s i[%" PRIu64 "]@%d", i > 0 ? "," : "",
                       expected->contributions[i].chunk, expected->contributions[i].rank);
        text_add(text, "\n");
    }
}

static void list_rank(bytes_writer *text, const banyan_plan *plan, int r)
{
    const plan_rank *rank = &plan->ranks[r];
    text_print(text,
               "\nrank %d: %" PRIu64 " input, %" PRIu64 " output and %" PRIu64 " scratch chunks\n",
               r, rank->chunks[PLAN_INPUT], rank->chunks[PLAN_OUTPUT], rank->chunks[PLAN_SCRATCH]);
    list_expected(text, plan, r);
    list_channels(text, rank, PLAN_MEMORY);
    list_channels(text, rank, PLAN_PORT);
    list_switches(text, rank);
    list_semaphores(text, rank);
    for (uint32_t i = 0; i < rank->block_count; i++) {
        text_print(text, "  thread block %" PRIu32 "\n", i);
        list_ops(text, plan, r, &rank->blocks[i]);
    }
}

banyan_status banyan_plan_list(const banyan_plan *plan, int rank, char **text)
{
    bytes_writer listed = {0};
    if (rank < -1 || rank >= plan->rank_count)
        return error_set(BANYAN_ERR_INVALID, "plan %s has %d ranks, and none with the number %d",
                         plan->name, plan->rank_count, rank);
    list_head(&listed, plan);
    for (int r = 0; r < plan->rank_count; r++) {
        if (rank == -1 || rank == r)
            list_rank(&listed, plan, r);
    }
    return text_finish(&listed, text, NULL);
}
