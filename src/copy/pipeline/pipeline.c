/* The pipeline object: tables, streams and events, and the check of a schedule. */
#include "copy/pipeline/backend.h"

#include <inttypes.h>
#include <stdlib.h>

#include "copy/strided/strided.h"
#include "core/error.h"

static bool launcher_complete(const banyan_pipeline_launcher *launcher)
{
    return launcher->size >= sizeof *launcher && launcher->pack && launcher->unpack &&
           launcher->copy;
}

static bool launcher_has_streams(const banyan_pipeline_launcher *launcher)
{
    return launcher->record && launcher->stream_wait && launcher->reached && launcher->synchronize;
}

static bool buffers_complete(const banyan_pipeline_buffers *buffers)
{
    return buffers->size >= sizeof *buffers && buffers->begin && buffers->grant &&
           buffers->take_grant && buffers->send && buffers->take_arrival && buffers->idle;
}

banyan_status banyan_pipeline_create(const banyan_pipeline_launcher *launcher,
                                     const banyan_pipeline_buffers *buffers, int rank,
                                     banyan_pipeline **pipeline)
{
    if (!launcher_complete(launcher) || !buffers_complete(buffers))
        return error_set(BANYAN_ERR_INVALID,
                         "pipeline: the %s of rank %d lacks an operation that is required",
                         launcher_complete(launcher) ? "table of buffers" : "launcher", rank);
    banyan_pipeline *made = alloc_zeroed(1, sizeof *made, "a pipeline");
    RETURN_IF_NO_MEMORY(made);
    made->launcher = launcher;
    made->buffers = buffers;
    made->rank = rank;
    *pipeline = made;
    return BANYAN_OK;
}

void banyan_pipeline_destroy(banyan_pipeline *pipeline)
{
    free(pipeline);
}

banyan_status banyan_pipeline_set_streams(banyan_pipeline *pipeline, banyan_stream pack,
                                          banyan_stream unpack, banyan_stream send,
                                          banyan_stream copy)
{
    int given = !!pack + !!unpack + !!send;
    if (given != 0 && given != 3)
        return error_set(BANYAN_ERR_INVALID,
                         "pipeline: %d of the pack, unpack and send streams are set; all or none "
                         "must be",
                         given);
    if ((given != 0 || copy) && !launcher_has_streams(pipeline->launcher))
        return error_set(BANYAN_ERR_INVALID,
                         "pipeline: streams are set, but the launcher has no operations on them");
    pipeline->pack_stream = pack;
    pipeline->unpack_stream = unpack;
    pipeline->send_stream = send;
    pipeline->copy_stream = copy;
    return BANYAN_OK;
}

banyan_status banyan_pipeline_set_events(banyan_pipeline *pipeline,
                                         const banyan_event pack[BANYAN_PIPELINE_SLOTS],
                                         const banyan_event unpack[BANYAN_PIPELINE_SLOTS])
{
    for (int slot = 0; slot < BANYAN_PIPELINE_SLOTS; slot++) {
        pipeline->pack_event[slot] = pack[slot];
        pipeline->unpack_event[slot] = unpack[slot];
    }
    return BANYAN_OK;
}

static banyan_status check_segment(const banyan_segment *segment, uint64_t batch_bytes)
{
    uint64_t elem_bytes = banyan_dtype_bytes(segment->tensor.dtype), elems = 1;
    if (elem_bytes == 0)
        return error_set(BANYAN_ERR_INVALID, "elements that do not fill whole bytes");
    if (segment->tensor.ndim < 0 || segment->tensor.ndim > BANYAN_MAX_DIMS)
        return error_set(BANYAN_ERR_INVALID, "a tensor of %d dimensions", segment->tensor.ndim);
    if (segment->tensor.ndim > 0 && !segment->tensor.shape)
        return error_set(BANYAN_ERR_INVALID, "a tensor without a shape");
    for (int d = 0; d < segment->tensor.ndim; d++) {
        int64_t extent = segment->tensor.shape[d];
        if (extent < 0 || __builtin_mul_overflow(elems, (uint64_t)extent, &elems))
            return error_set(BANYAN_ERR_INVALID, "a tensor with extent %" PRId64, extent);
    }
    if (segment->first_elem > elems || segment->elem_count > elems - segment->first_elem)
        return error_set(BANYAN_ERR_INVALID,
                         "%" PRIu64 " elements from element %" PRIu64 " on of a tensor of %" PRIu64,
                         segment->elem_count, segment->first_elem, elems);
    if (segment->slot_offset > batch_bytes ||
        segment->elem_count > (batch_bytes - segment->slot_offset) / elem_bytes)
        return error_set(BANYAN_ERR_INVALID,
                         "%" PRIu64 " elements of %" PRIu64 " bytes from byte %" PRIu64
                         " on of a batch of %" PRIu64 " bytes",
                         segment->elem_count, elem_bytes, segment->slot_offset, batch_bytes);
    return BANYAN_OK;
}

static banyan_status copy_pipeline_check_batch(const banyan_pipeline *pipeline,
                                               const banyan_slot_batch *batch)
{
    if (batch->peer < -1 || batch->peer == pipeline->rank ||
        batch->peer >= pipeline->buffers->ranks)
        return error_set(BANYAN_ERR_INVALID, "rank %d of %d has no batch with rank %d",
                         pipeline->rank, pipeline->buffers->ranks, batch->peer);
    if (batch->peer < 0)
        return BANYAN_OK;
    if (batch->bytes > pipeline->buffers->slot_bytes)
        return error_set(BANYAN_ERR_INVALID, "%" PRIu64 " bytes in a slot of %zu", batch->bytes,
                         pipeline->buffers->slot_bytes);
    for (size_t i = 0; i < batch->segment_count; i++) {
        banyan_status status = check_segment(&batch->segments[i], batch->bytes);
        if (status != BANYAN_OK)
            return error_set(status, "segment %zu: %s", i, banyan_last_error());
    }
    return BANYAN_OK;
}

banyan_status pipeline_check(const banyan_pipeline *pipeline, const banyan_iteration *iterations,
                             size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const banyan_slot_batch *batches[] = {&iterations[i].send, &iterations[i].recv};
        for (int d = 0; d < 2; d++) {
            banyan_status status = copy_pipeline_check_batch(pipeline, batches[d]);
            if (status != BANYAN_OK)
                return error_set(status, "pipeline: rank %d, iteration %zu, %s batch: %s",
                                 pipeline->rank, i, d == 0 ? "send" : "receive",
                                 banyan_last_error());
        }
    }
    if (!pipeline->pack_stream)
        return BANYAN_OK;
    for (int slot = 0; slot < BANYAN_PIPELINE_SLOTS; slot++) {
        if (!pipeline->pack_event[slot] || !pipeline->unpack_event[slot])
            return error_set(BANYAN_ERR_INVALID,
                             "pipeline: rank %d has streams, but no events for slot %d",
                             pipeline->rank, slot);
    }
    return BANYAN_OK;
}

banyan_status banyan_pipeline_execute(banyan_pipeline *pipeline, const banyan_iteration *iterations,
                                      size_t num_iterations)
{
    RETURN_IF_FAILED(pipeline_check(pipeline, iterations, num_iterations));
    copy_progress nobody = {0};
    return pipeline_run(pipeline, iterations, num_iterations, &nobody);
}
