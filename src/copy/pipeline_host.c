/* The launcher for host memory: the work is done in the call. */
#include <banyan/pipeline.h>

#include "copy/strided.h"
#include "core/error.h"

static banyan_status host_pack(void *context, banyan_stream stream, void *slot,
                               const banyan_segment *segments, size_t count)
{
    (void)context;
    (void)stream;
    for (size_t i = 0; i < count; i++) {
        strided_view view;
        RETURN_IF_FAILED(strided_view_of(&segments[i].tensor, &view));
        strided_pack((char *)slot + segments[i].slot_offset, &view, segments[i].first_elem,
                     segments[i].elem_count);
    }
    return BANYAN_OK;
}

static banyan_status host_unpack(void *context, banyan_stream stream, const void *slot,
                                 const banyan_segment *segments, size_t count)
{
    (void)context;
    (void)stream;
    for (size_t i = 0; i < count; i++) {
        strided_view view;
        RETURN_IF_FAILED(strided_view_of(&segments[i].tensor, &view));
        strided_unpack(&view, segments[i].first_elem, segments[i].elem_count,
                       (const char *)slot + segments[i].slot_offset);
    }
    return BANYAN_OK;
}

static banyan_status host_copy(void *context, banyan_stream stream, const DLTensor *destination,
                               const DLTensor *source)
{
    (void)context;
    (void)stream;
    return banyan_tensor_copy(destination, source);
}

const banyan_pipeline_launcher *banyan_pipeline_host_launcher(void)
{
    static const banyan_pipeline_launcher launcher = {
        .size = sizeof launcher, .pack = host_pack, .unpack = host_unpack, .copy = host_copy};
    return &launcher;
}
