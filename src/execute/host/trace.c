#include "execute/host/trace.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/files/new_file.h"
#include "execute/device/device.h"
#include "execute/executor.h"
#include "plan/plan.h"
#include "world/control.h"

void trace_add(trace_ring *ring, const trace_record *record)
{
    ring->records[ring->count++ % TRACE_RING_RECORDS] = *record;
}

void trace_free(trace *old)
{
    for (int i = 0; old && i < old->ring_count; i++)
        free(old->rings[i].records);
    if (old)
        free(old->rings);
    free(old);
}

banyan_status banyan_executor_trace_begin(banyan_executor *executor)
{
    trace *made = calloc(1, sizeof *made);
    size_t count = (size_t)executor->worker_count;
    if (made)
        made->rings = calloc(count, sizeof *made->rings);
    if (!made || !made->rings) {
        free(made);
        return error_no_memory(count * sizeof *made->rings, "a trace");
    }
    for (made->ring_count = 0; made->ring_count < (int)count; made->ring_count++) {
        trace_ring *ring = &made->rings[made->ring_count];
        ring->records = malloc(TRACE_RING_RECORDS * sizeof *ring->records);
        if (!ring->records) {
            trace_free(made);
            return error_no_memory(TRACE_RING_RECORDS * sizeof *ring->records, "a trace");
        }
    }
    if (!executor_is_host(executor)) {
        banyan_status status = device_trace_begin(executor);
        if (status != BANYAN_OK) {
            trace_free(made);
            return status;
        }
    }
    trace_free(executor->trace);
    executor->trace = made;
    return BANYAN_OK;
}

static uint64_t kept_records(const trace_ring *ring)
{
    return ring->count < TRACE_RING_RECORDS ? ring->count : TRACE_RING_RECORDS;
}

/* List this rank's records, ring after ring, the oldest first. */
static banyan_status host_trace_flatten(const trace *of, trace_record **records, uint64_t *count)
{
    uint64_t total = 0, at = 0;
    for (int i = 0; of && i < of->ring_count; i++)
        total += kept_records(&of->rings[i]);
    trace_record *all = malloc((total + 1) * sizeof *all);
    if (!all)
        return error_no_memory((total + 1) * sizeof *all, "a trace");
    for (int i = 0; of && i < of->ring_count; i++) {
        const trace_ring *ring = &of->rings[i];
        for (uint64_t n = ring->count - kept_records(ring); n < ring->count; n++)
            all[at++] = ring->records[n % TRACE_RING_RECORDS];
    }
    *records = all;
    *count = total;
    return BANYAN_OK;
}

static void write_record(FILE *file, int rank, const trace_record *record)
{
    fprintf(file,
            ",\n{\"ph\":\"X\",\"pid\":%d,\"tid\":%" PRIu32 ",\"ts\":%.3f,\"dur\":%.3f,"
            "\"name\":\"%s\",\"args\":{\"run\":%" PRIu64 ",\"operation\":%" PRIu32
            ",\"iteration\":%" PRIu64 ",\"waited_us\":%.3f",
            rank, record->block, (double)record->begin_ns / 1e3,
            (double)(record->end_ns - record->begin_ns) / 1e3,
            plan_op_name((plan_op_kind)record->kind), record->run, record->number,
            record->iteration, (double)record->waited_ns / 1e3);
    if (record->loop_number >= 0)
        fprintf(file, ",\"loop_operation\":%" PRId32, record->loop_number);
    if (record->peer >= 0)
        fprintf(file, ",\"peer\":%" PRId32, record->peer);
    fprintf(file, "}}");
}

static void host_trace_write_rank(FILE *file, int rank, const trace_record *records, uint64_t count)
{
    fprintf(
        file,
        "%s\n{\"ph\":\"M\",\"pid\":%d,\"name\":\"process_name\",\"args\":{\"name\":\"rank %d\"}}",
        rank > 0 ? "," : "", rank, rank);
    for (uint64_t i = 0; i < count; i++)
        write_record(file, rank, &records[i]);
}

#define TRACE_TAG UINT64_C(0x7472616365) /* tag of the messages that carry records to rank 0 */

static banyan_status host_trace_write_all(const banyan_executor *executor, FILE *file,
                                          const trace_record *mine, uint64_t count)
{
    fprintf(file, "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[");
    host_trace_write_rank(file, 0, mine, count);
    for (int r = 1; r < executor->ranks; r++) {
        void *data;
        size_t bytes;
        RETURN_IF_FAILED(
            control_receive(executor->world, r, TRACE_TAG, "its trace", &data, &bytes));
        host_trace_write_rank(file, r, data, bytes / sizeof(trace_record));
        free(data);
    }
    fprintf(file, "\n]}\n");
    return BANYAN_OK;
}

static banyan_status host_trace_write_stream(const banyan_executor *executor, const new_file *to,
                                             const char *path, const trace_record *mine,
                                             uint64_t count)
{
    FILE *file = new_file_stream(to);
    if (!file)
        return error_set_errno("cannot write the trace %s", path);
    banyan_status status = host_trace_write_all(executor, file, mine, count);
    bool written = ferror(file) == 0;
    written &= fclose(file) == 0;
    if (status == BANYAN_OK && !written)
        status = error_set_errno("cannot write the trace %s", path);
    return status;
}

/* Write the file, on rank 0. It gets its final name only when it is complete. */
static banyan_status host_trace_write_file(const banyan_executor *executor, const char *path,
                                           new_file *file, const trace_record *mine, uint64_t count)
{
    banyan_status status = host_trace_write_stream(executor, file, path, mine, count);
    if (status == BANYAN_OK)
        status = new_file_publish(file, path);
    return status;
}

/* Ranks send their records only after rank 0 has opened the file. */
static banyan_status write_together(const banyan_executor *executor, const char *path,
                                    const trace_record *records, uint64_t count)
{
    new_file file;
    banyan_status opened = executor->rank == 0 ? new_file_open_for(path, &file) : BANYAN_OK, status;
    status = control_agree(executor->world, opened);
    if (status == BANYAN_OK && executor->rank == 0)
        status = host_trace_write_file(executor, path, &file, records, count);
    else if (status == BANYAN_OK)
        status = control_send(executor->world, 0, TRACE_TAG, records, count * sizeof *records);
    if (executor->rank == 0 && opened == BANYAN_OK)
        new_file_close(&file);
    return control_agree(executor->world, status);
}

banyan_status banyan_executor_trace_write(banyan_executor *executor, const char *path)
{
    trace_record *records = NULL;
    uint64_t count = 0;
    banyan_status status = BANYAN_OK;
    if (!executor_is_host(executor) && executor->trace)
        status = device_trace_take(executor);
    if (status == BANYAN_OK && !executor_is_host(executor))
        status = device_trace_stop(executor);
    if (status == BANYAN_OK)
        status = host_trace_flatten(executor->trace, &records, &count);
    status = control_agree(executor->world, status);
    if (status == BANYAN_OK)
        status = write_together(executor, path, records, count);
    free(records);
    trace_free(executor->trace);
    executor->trace = NULL;
    return status;
}
