#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "core/files/new_file.h"
#include "core/text/text.h"
#include "plan/geometry/geometry.h"
#include "plan/op.h"

#define ULL(number) ((unsigned long long)(number))

/* One line per operation, and one per other list of a rank. */
typedef struct plan_writer {
    const banyan_plan *plan;
    bytes_writer text;
    bool bad_text; /* a name that a reader would refuse */
} plan_writer;

static bool has_controls(const char *text)
{
    while (*text != '\0' && (unsigned char)*text >= ' ' && *text != 0x7f)
        text++;
    return *text != '\0';
}

static void add_string(plan_writer *writer, const char *text)
{
    json_t *string = has_controls(text) ? NULL : json_string(text);
    char *dumped = string ? json_dumps(string, JSON_ENCODE_ANY) : NULL;
    if (dumped)
        text_add(&writer->text, dumped);
    else
        writer->bad_text = true;
    free(dumped);
    json_decref(string);
}

static void add_numbers(plan_writer *writer, const uint32_t *numbers, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        text_print(&writer->text, "%s%u", i > 0 ? ", " : "", numbers[i]);
}

static void add_ranks(plan_writer *writer, const int *ranks, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        text_print(&writer->text, "%s%d", i > 0 ? ", " : "", ranks[i]);
}

static const char *json_write_truth(bool value)
{
    return value ? "true" : "false";
}

static void json_write_add_operand(plan_writer *writer, const plan_operand *operand)
{
    bytes_writer *text = &writer->text;
    if (operand->place == PLAN_LOCAL)
        text_print(text, "{\"type\": \"%s\"", plan_buffer_name(operand->buffer));
    else if (operand->place == PLAN_REMOTE)
        text_print(text, "{\"buffer_id\": %u", operand->reference);
    else
        text_print(text, "{\"switch_channel_id\": %u", operand->reference);
    text_print(text, ", \"index\": %llu, \"size\": %llu}", ULL(operand->index), ULL(operand->size));
}

static void json_write_add_operands(plan_writer *writer, const char *key,
                                    const plan_operand *operands, uint32_t count)
{
    if (count == 0)
        return;
    text_print(&writer->text, ", \"%s\": [", key);
    for (uint32_t i = 0; i < count; i++) {
        text_add(&writer->text, i > 0 ? ", " : "");
        json_write_add_operand(writer, &operands[i]);
    }
    text_add(&writer->text, "]");
}

static void json_write_add_ops(plan_writer *writer, const plan_op *ops, uint32_t count,
                               const char *indent);

/* MSCCL++'s executor exchanges the places of a get. */
static void json_write_add_get(plan_writer *writer, const plan_op *op)
{
    for (int side = 0; side < 2; side++) {
        text_print(&writer->text, ", \"%s\": [", side == 0 ? "src_buff" : "dst_buff");
        for (uint32_t i = 0; i < op->source_count; i++) {
            plan_operand operand = side == 0 ? op->sources[i] : op->destinations[i];
            operand.index = side == 0 ? op->destinations[i].index : op->sources[i].index;
            text_add(&writer->text, i > 0 ? ", " : "");
            json_write_add_operand(writer, &operand);
        }
        text_add(&writer->text, "]");
    }
}

/* MSCCL++'s executor flushes as many channels as the operation has destinations. */
static void json_write_add_flushed(plan_writer *writer, const plan_op *op)
{
    text_add(&writer->text, ", \"dst_buff\": [");
    for (uint32_t i = 0; i < op->channel_count; i++)
        text_print(&writer->text, "%s{\"type\": \"i\", \"index\": 0, \"size\": 0}",
                   i > 0 ? ", " : "");
    text_add(&writer->text, "]");
}

static void json_write_add_buffers(plan_writer *writer, const plan_op *op)
{
    bool theirs = writer->plan->executor == BANYAN_EXECUTOR_MSCCLPP;
    if (theirs && op->kind == PLAN_GET) {
        json_write_add_get(writer, op);
        return;
    }
    json_write_add_operands(writer, "src_buff", op->sources, op->source_count);
    json_write_add_operands(writer, "dst_buff", op->destinations, op->destination_count);
    if (theirs && op->kind == PLAN_FLUSH)
        json_write_add_flushed(writer, op);
}

static void json_write_add_op(plan_writer *writer, const plan_op *op, const char *indent)
{
    bytes_writer *text = &writer->text;
    text_print(text, "{\"name\": \"%s\"", plan_op_name(op->kind));
    if (op->line > 0)
        text_print(text, ", \"line\": %u", op->line);
    if (op->kind == PLAN_BARRIER)
        text_print(text, ", \"barrier_id\": %u, \"num_threadblocks\": %u", op->barrier,
                   op->barrier_members);
    json_write_add_buffers(writer, op);
    if (op->channel_count > 0) {
        text_add(text, ", \"channel_ids\": [");
        add_numbers(writer, op->channels, op->channel_count);
        text_add(text, "]");
    }
    if (op->channel_type != PLAN_NO_CHANNEL)
        text_print(text, ", \"channel_type\": \"%s\"", plan_channel_name(op->channel_type));
    if (plan_op_reduces(op->kind))
        text_print(text, ", \"reduce_op\": \"%s\"", banyan_reduce_op_name(op->reduce_op));
    if (op->group_size > 0)
        text_print(text, ", \"tbg_info\": {\"tb_id\": %u, \"tbg_size\": %u}", op->group_index,
                   op->group_size);
    if (op->semaphore_count > 0) {
        text_add(text, ", \"semaphore_ids\": [");
        add_numbers(writer, op->semaphores, op->semaphore_count);
        text_add(text, "]");
    }
    if (op->kind == PLAN_PIPELINE) {
        text_print(text,
                   ", \"iter_context\": {\"unit_size\": %llu, \"num_chunks\": %llu}, \"ops\": ",
                   ULL(op->unit_bytes), ULL(op->loop_chunks));
        json_write_add_ops(writer, op->ops, op->op_count, indent);
    }
    text_add(text, "}");
}

static void json_write_add_ops(plan_writer *writer, const plan_op *ops, uint32_t count,
                               const char *indent)
{
    text_add(&writer->text, "[");
    for (uint32_t i = 0; i < count; i++) {
        text_print(&writer->text, "%s\n%s  ", i > 0 ? "," : "", indent);
        json_write_add_op(writer, &ops[i], "            ");
    }
    text_print(&writer->text, count > 0 ? "\n%s]" : "]", indent);
}

static void add_references(plan_writer *writer, const char *key, const char *type_key,
                           const char *numbers_key, uint32_t *const *lists, const uint32_t *counts)
{
    bool first = true;
    text_print(&writer->text, ",\n          \"%s\": [", key);
    for (int type = PLAN_MEMORY; type < PLAN_CHANNEL_TYPES; type++) {
        if (counts[type] == 0)
            continue;
        text_print(&writer->text, "%s{\"%s\": \"%s\", \"%s\": [", first ? "" : ", ", type_key,
                   plan_channel_name(type), numbers_key);
        add_numbers(writer, lists[type], counts[type]);
        text_add(&writer->text, "]}");
        first = false;
    }
    text_add(&writer->text, "]");
}

static void json_write_add_block(plan_writer *writer, const plan_thread_block *block)
{
    text_print(&writer->text, "        {\n          \"id\": %u,\n          \"ops\": ", block->id);
    json_write_add_ops(writer, block->ops, block->op_count, "          ");
    add_references(writer, "channels", "channel_type", "channel_ids", block->channels,
                   block->channel_count);
    add_references(writer, "remote_buffer_refs", "access_channel_type", "remote_buffer_ids",
                   block->remote_buffers, block->remote_buffer_count);
    text_add(&writer->text, "\n        }");
}

static void json_write_add_channels(plan_writer *writer, const plan_rank *rank)
{
    const char *comma = "";
    bytes_writer *text = &writer->text;
    text_add(text, "      \"channels\": [");
    for (int type = PLAN_MEMORY; type <= PLAN_PORT; type++) {
        if (rank->channel_count[type] == 0)
            continue;
        text_print(text, "%s\n        {\"channel_type\": \"%s\", \"connected_to\": [", comma,
                   plan_channel_name(type));
        add_ranks(writer, rank->peers[type], rank->channel_count[type]);
        text_add(text, "]}");
        comma = ",";
    }
    for (uint32_t i = 0; i < rank->channel_count[PLAN_SWITCH]; i++) {
        const plan_switch *group = &rank->switches[i];
        text_print(text,
                   "%s\n        {\"channel_type\": \"switch\", \"buffer_type\": \"%s\", "
                   "\"rank_groups\": [{\"size\": %d, \"ranks\": [",
                   comma, plan_buffer_name(group->buffer), group->rank_count);
        add_ranks(writer, group->ranks, (uint32_t)group->rank_count);
        text_add(text, "]}]}");
        comma = ",";
    }
    text_add(text, comma[0] ? "\n      ],\n" : "],\n");
}

static void add_remote_buffers(plan_writer *writer, const plan_rank *rank)
{
    bytes_writer *text = &writer->text;
    text_add(text, "      \"remote_buffers\": [");
    for (uint32_t i = 0; i < rank->remote_buffer_count; i++) {
        const plan_remote_buffer *buffer = &rank->remote_buffers[i];
        const char *comma = "";
        text_print(text, "%s\n        {\"rank\": %d, \"type\": \"%s\", \"access_channel_types\": [",
                   i > 0 ? "," : "", buffer->rank, plan_buffer_name(buffer->buffer));
        for (int type = PLAN_MEMORY; type < PLAN_CHANNEL_TYPES; type++) {
            if (buffer->access & PLAN_BIT(type)) {
                text_print(text, "%s\"%s\"", comma, plan_channel_name(type));
                comma = ", ";
            }
        }
        text_add(text, "]}");
    }
    text_add(text, rank->remote_buffer_count > 0 ? "\n      ],\n" : "],\n");
}

static void json_write_add_rank(plan_writer *writer, int r)
{
    const plan_rank *rank = &writer->plan->ranks[r];
    bytes_writer *text = &writer->text;
    text_print(text,
               "    {\n      \"id\": %d,\n      \"input_chunks\": %llu,\n      \"output_chunks\": "
               "%llu,\n      \"scratch_chunks\": %llu,\n      \"threadblocks\": [",
               r, ULL(rank->chunks[PLAN_INPUT]), ULL(rank->chunks[PLAN_OUTPUT]),
               ULL(rank->chunks[PLAN_SCRATCH]));
    for (uint32_t i = 0; i < rank->block_count; i++) {
        text_add(text, i > 0 ? ",\n" : "\n");
        json_write_add_block(writer, &rank->blocks[i]);
    }
    text_add(text, rank->block_count > 0 ? "\n      ],\n" : "],\n");
    json_write_add_channels(writer, rank);
    add_remote_buffers(writer, rank);
    text_add(text, "      \"semaphores\": [");
    for (uint32_t i = 0; i < rank->semaphore_count; i++)
        text_print(text, "%s{\"init_value\": %llu}", i > 0 ? ", " : "", ULL(rank->semaphores[i]));
    text_add(text, "]\n    }");
}

static void add_expected_chunk(plan_writer *writer, const plan_expected *chunk)
{
    if (chunk->count == 0) {
        text_add(&writer->text, "null");
        return;
    }
    for (size_t i = 0; i < chunk->count; i++)
        text_print(&writer->text, "%s[%d, %llu]", i > 0 ? ", " : "[", chunk->contributions[i].rank,
                   ULL(chunk->contributions[i].chunk));
    text_add(&writer->text, "]");
}

static void add_expected(plan_writer *writer)
{
    const banyan_plan *plan = writer->plan;
    text_print(&writer->text, "\"reduce_op\": \"%s\",\n    \"expected\": [",
               banyan_reduce_op_name(plan->expected_op));
    for (int r = 0; r < plan->rank_count; r++) {
        text_add(&writer->text, r > 0 ? ",\n      " : "\n      ");
        if (!plan->expected[r]) {
            text_add(&writer->text, "null");
            continue;
        }
        text_add(&writer->text, "[");
        for (uint64_t i = 0; i < plan->ranks[r].chunks[PLAN_OUTPUT]; i++) {
            text_add(&writer->text, i > 0 ? ", " : "");
            add_expected_chunk(writer, &plan->expected[r][i]);
        }
        text_add(&writer->text, "]");
    }
    text_add(&writer->text, "\n    ]");
}

static void add_tags(plan_writer *writer)
{
    text_add(&writer->text, "\"tags\": {");
    for (size_t i = 0; i < writer->plan->tag_count; i++) {
        text_add(&writer->text, i > 0 ? ",\n      " : "\n      ");
        add_string(writer, writer->plan->tags[i].key);
        text_add(&writer->text, ": ");
        add_string(writer, writer->plan->tags[i].value);
    }
    text_add(&writer->text, "\n    }");
}

static void json_write_add_lines(plan_writer *writer)
{
    text_add(&writer->text, "\"lines\": [");
    for (uint32_t i = 0; i < writer->plan->line_count; i++) {
        text_add(&writer->text, i > 0 ? ",\n      [" : "\n      [");
        add_string(writer, writer->plan->lines[i].file);
        text_print(&writer->text, ", %d]", writer->plan->lines[i].line);
    }
    text_add(&writer->text, "\n    ]");
}

static const char *next_extra(bool *any)
{
    const char *before = *any ? ",\n    " : ",\n  \"banyan\": {\n    ";
    *any = true;
    return before;
}

/* Write only the values that differ from a reader's defaults. */
static void add_extras(plan_writer *writer)
{
    const banyan_plan *plan = writer->plan;
    bytes_writer *text = &writer->text;
    bool any = false;
    if (plan->executor != BANYAN_EXECUTOR_BANYAN)
        text_print(text, "%s\"executor\": \"%s\"", next_extra(&any),
                   banyan_plan_executor_name(plan->executor));
    if (plan->collective == BANYAN_BROADCAST || plan->collective == BANYAN_REDUCE)
        text_print(text, "%s\"root\": %d", next_extra(&any), plan->root);
    if (plan->collective == BANYAN_SENDRECV)
        text_print(text, "%s\"shift\": %d", next_extra(&any), plan->shift);
    if (plan->reuse_resources && plan->reused_scratch_bytes != PLAN_REUSED_SCRATCH_BYTES)
        text_print(text, "%s\"reused_scratch_bytes\": %llu", next_extra(&any),
                   ULL(plan->reused_scratch_bytes));
    if (plan->block_chunks > 1)
        text_print(text, "%s\"block_chunks\": %llu", next_extra(&any), ULL(plan->block_chunks));
    if (plan->expected) {
        text_add(text, next_extra(&any));
        add_expected(writer);
    }
    if (plan->tag_count > 0) {
        text_add(text, next_extra(&any));
        add_tags(writer);
    }
    if (plan->line_count > 0) {
        text_add(text, next_extra(&any));
        json_write_add_lines(writer);
    }
    text_add(text, any ? "\n  }" : "");
}

static void add_plan(plan_writer *writer)
{
    const banyan_plan *plan = writer->plan;
    bytes_writer *text = &writer->text;
    text_add(text, "{\n  \"name\": ");
    add_string(writer, plan->name);
    text_add(text, ",\n  \"collective\": ");
    add_string(writer, plan->collective_name);
    text_print(text,
               ",\n  \"protocol\": \"%s\",\n  \"inplace\": %s,\n  \"reuse_resources\": %s,\n"
               "  \"gpus\": [",
               plan->protocol == BANYAN_LL ? "LL" : "Simple", json_write_truth(plan->in_place),
               json_write_truth(plan->reuse_resources));
    for (int r = 0; r < plan->rank_count; r++) {
        text_add(text, r > 0 ? ",\n" : "\n");
        json_write_add_rank(writer, r);
    }
    text_print(text,
               "\n  ],\n  \"num_threads_per_block\": %d,\n  \"use_double_scratch_buffer\": %s,\n"
               "  \"buffer_alignment\": %llu,\n  \"min_message_size\": %llu,\n"
               "  \"max_message_size\": %llu",
               plan->threads_per_block, json_write_truth(plan->double_scratch),
               ULL(plan->buffer_alignment), ULL(plan->min_message_bytes),
               ULL(plan->max_message_bytes));
    add_extras(writer);
    text_add(text, "\n}\n");
}

banyan_status banyan_plan_print(const banyan_plan *plan, char **text, size_t *bytes)
{
    plan_writer writer = {.plan = plan};
    add_plan(&writer);
    if (writer.bad_text && !writer.text.failed) {
        bytes_writer_free(&writer.text);
        return error_set(BANYAN_ERR_INVALID,
                         "the name or a tag of a plan is not UTF-8, or has control characters");
    }
    return text_finish(&writer.text, text, bytes);
}

banyan_status banyan_plan_write(const banyan_plan *plan, const char *path)
{
    char *text;
    RETURN_IF_FAILED(banyan_plan_print(plan, &text, NULL));
    banyan_status status = new_file_write_at(path, text);
    free(text);
    return status;
}
