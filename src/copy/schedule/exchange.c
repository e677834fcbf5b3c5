#include "copy/schedule/exchange.h"

#include <inttypes.h>

#include "world/control.h"

enum { MESSAGE_FAILED = 0, MESSAGE_PLAN = 1 };

#define SEGMENT_BYTES (2 * sizeof(uint64_t)) /* in a message */

void pipeline_flow_free(pipeline_flow *flow)
{
    pipeline_batches_free(&flow->batches);
}

void pipeline_flow_write(const pipeline_flow *flow, bytes_writer *message)
{
    const pipeline_batches *batches = &flow->batches;
    bytes_write_u32(message, MESSAGE_PLAN);
    bytes_write_u64(message, batches->list.count);
    for (size_t b = 0; b < batches->list.count; b++) {
        const pipeline_batch *batch = &batches->list.data[b];
        bytes_write_u32(message, (uint32_t)batch->segment_count);
        for (size_t i = 0; i < batch->segment_count; i++) {
            const pipeline_segment *segment = &batches->segments.data[batch->first_segment + i];
            bytes_write_u64(message, segment->task);
            bytes_write_u64(message, segment->elem_count);
        }
    }
}

typedef struct flow_parser {
    const pipeline_flow *flow;
    uint64_t slot_bytes;
    uint64_t *next_elem; /* next element of each task */
    bytes_reader message;
    pipeline_batches batches;
} flow_parser;

/* Parse a segment. An error is a part of a message; the caller adds the sender. */
static banyan_status read_segment(flow_parser *parser, pipeline_batch *batch)
{
    uint64_t task = bytes_read_u64(&parser->message);
    uint64_t elems = bytes_read_u64(&parser->message);
    if (task >= parser->flow->task_count)
        return error_set(BANYAN_ERR_FORMAT, "names task %" PRIu64 " of %zu", task,
                         parser->flow->task_count);
    const pipeline_task *known = &parser->flow->tasks[task];
    uint64_t first = parser->next_elem[task];
    if (elems == 0 || elems > known->elems - first)
        return error_set(BANYAN_ERR_FORMAT,
                         "has %" PRIu64 " elements of task %" PRIu64 ", of which %" PRIu64
                         " are missing",
                         elems, task, known->elems - first);
    uint64_t offset = pipeline_batch_next_offset(batch);
    if (offset > parser->slot_bytes || elems > (parser->slot_bytes - offset) / known->elem_bytes)
        return error_set(BANYAN_ERR_FORMAT,
                         "puts %" PRIu64 " elements of %" PRIu64 " bytes behind byte %" PRIu64
                         " of a slot of %" PRIu64,
                         elems, known->elem_bytes, offset, parser->slot_bytes);
    parser->next_elem[task] += elems;
    batch->segment_count++;
    batch->bytes = offset + elems * known->elem_bytes;
    return array_push(&parser->batches.segments, (pipeline_segment){task, first, elems, offset})
               ? BANYAN_OK
               : BANYAN_ERR_NO_MEMORY;
}

static banyan_status read_batch(flow_parser *parser)
{
    uint32_t segments = bytes_read_u32(&parser->message);
    if (segments == 0 || segments > PIPELINE_BATCH_TASKS ||
        segments > parser->message.left / SEGMENT_BYTES)
        return error_set(BANYAN_ERR_FORMAT, "has %" PRIu32 " segments in %zu bytes", segments,
                         parser->message.left);
    pipeline_batch batch = {.first_segment = parser->batches.segments.count};
    for (uint32_t i = 0; i < segments; i++)
        RETURN_IF_FAILED(read_segment(parser, &batch));
    return array_push(&parser->batches.list, batch) ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
}

static banyan_status exchange_check_complete(const flow_parser *parser)
{
    for (size_t i = 0; i < parser->flow->task_count; i++) {
        if (parser->next_elem[i] != parser->flow->tasks[i].elems)
            return error_set(BANYAN_ERR_FORMAT,
                             "has %" PRIu64 " of %" PRIu64 " elements of task %zu",
                             parser->next_elem[i], parser->flow->tasks[i].elems, i);
    }
    if (parser->message.left > 0)
        return error_set(BANYAN_ERR_FORMAT, "has %zu bytes behind its end", parser->message.left);
    return BANYAN_OK;
}

static banyan_status read_batches(flow_parser *parser, uint64_t *batch)
{
    uint64_t count = bytes_read_u64(&parser->message);
    for (*batch = 0; *batch < count; ++*batch)
        RETURN_IF_FAILED(read_batch(parser));
    return exchange_check_complete(parser);
}

banyan_status pipeline_flow_read(int rank, const void *data, size_t bytes, uint64_t slot_bytes,
                                 pipeline_flow *flow)
{
    size_t table_bytes = (flow->task_count + 1) * sizeof(uint64_t);
    flow_parser parser = {.flow = flow,
                          .slot_bytes = slot_bytes,
                          .next_elem = calloc(1, table_bytes),
                          .message = bytes_reader_of(data, bytes)};
    if (!parser.next_elem)
        return error_no_memory(table_bytes, "reading a plan of batches");
    uint32_t kind = bytes_read_u32(&parser.message);
    uint64_t batch = 0;
    banyan_status status = kind == MESSAGE_PLAN
                               ? read_batches(&parser, &batch)
                               : error_set(BANYAN_ERR_FORMAT, "is of kind %" PRIu32, kind);
    free(parser.next_elem);
    if (status == BANYAN_OK) {
        flow->batches = parser.batches;
        return BANYAN_OK;
    }
    pipeline_batches_free(&parser.batches);
    if (status == BANYAN_ERR_NO_MEMORY)
        return status;
    return error_set(
        status, "pipeline: rank %d: the plan from rank %d, %zu bytes, batch %" PRIu64 ": it %s",
        rank, flow->peer, bytes, batch, banyan_last_error());
}

static banyan_status exchange_write_messages(banyan_status mine, const pipeline_flow *sends,
                                             size_t send_count, control_message *messages)
{
    for (size_t i = 0; i < send_count; i++) {
        bytes_writer writer = {0};
        if (mine == BANYAN_OK)
            pipeline_flow_write(&sends[i], &writer);
        if (writer.failed)
            mine = BANYAN_ERR_NO_MEMORY;
        if (mine != BANYAN_OK) {
            bytes_writer_free(&writer);
            bytes_write_u32(&writer, MESSAGE_FAILED);
        }
        messages[i] = (control_message){sends[i].peer, writer.data, writer.count};
    }
    return mine;
}

static bool says_failed(const control_message *message)
{
    bytes_reader reader = bytes_reader_of(message->data, message->bytes);
    return bytes_read_u32(&reader) == MESSAGE_FAILED && !reader.failed;
}

/* Both lists are sorted by rank. */
static banyan_status read_messages(int rank, const control_message *messages, size_t message_count,
                                   uint64_t slot_bytes, pipeline_flow *recvs, size_t recv_count)
{
    for (size_t i = 0; i < recv_count || i < message_count; i++) {
        if (i >= message_count || (i < recv_count && recvs[i].peer < messages[i].rank))
            return error_set(BANYAN_ERR_MISMATCH,
                             "pipeline: rank %d: no plan came from rank %d for %zu tasks", rank,
                             recvs[i].peer, recvs[i].task_count);
        if (i >= recv_count || recvs[i].peer > messages[i].rank)
            return error_set(
                BANYAN_ERR_MISMATCH,
                "pipeline: rank %d: a plan came from rank %d, which has no task for it", rank,
                messages[i].rank);
        if (!says_failed(&messages[i]))
            RETURN_IF_FAILED(pipeline_flow_read(rank, messages[i].data, messages[i].bytes,
                                                slot_bytes, &recvs[i]));
    }
    return BANYAN_OK;
}

banyan_status pipeline_exchange(banyan_world *world, banyan_status mine, const pipeline_flow *sends,
                                size_t send_count, uint64_t slot_bytes, pipeline_flow *recvs,
                                size_t recv_count)
{
    control_message *messages = calloc(send_count + 1, sizeof *messages), *received;
    size_t received_count;
    if (!messages)
        return control_fail(
            world, error_no_memory((send_count + 1) * sizeof *messages, "plans for partners"));
    banyan_status status = exchange_write_messages(mine, sends, send_count, messages);
    banyan_status exchanged =
        control_exchange(world, messages, send_count, "pipeline plans", &received, &received_count);
    if (exchanged == BANYAN_OK) {
        if (status == BANYAN_OK)
            status = read_messages(banyan_world_rank(world), received, received_count, slot_bytes,
                                   recvs, recv_count);
        control_messages_free(received, received_count);
    }
    for (size_t i = 0; i < send_count; i++)
        free(messages[i].data);
    free(messages);
    return status != BANYAN_OK ? status : exchanged;
}
