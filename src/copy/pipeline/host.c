/* The launcher for host memory: each operation is complete when its call returns. */
#include "copy/pipeline/host.h"

#include "copy/strided/strided.h"
#include "core/error.h"

/* Pack into the caches: the partner reads the slot next. */
static banyan_status host_pack(void *context, banyan_stream stream, void *slot,
                               const banyan_segment *segments, size_t count)
{
    (void)context;
    (void)stream;
    for (size_t i = 0; i < count; i++) {
        strided_view view;
        RETURN_IF_FAILED(strided_view_of(&segments[i].tensor, &view));
        strided_pack_as((char *)slot + segments[i].slot_offset, &view, segments[i].first_elem,
                        segments[i].elem_count, STRIDED_IN_CACHES);
    }
    return BANYAN_OK;
}

static banyan_status host_unpack(void *context, banyan_stream stream, const void *slot,
                                 const banyan_segment *segments, size_t count)
{
    (void)stream;
    bool past_caches = context && *(const bool *)context;
    for (size_t i = 0; i < count; i++) {
        strided_view view;
        RETURN_IF_FAILED(strided_view_of(&segments[i].tensor, &view));
        strided_unpack_as(&view, segments[i].first_elem, segments[i].elem_count,
                          (const char *)slot + segments[i].slot_offset,
                          past_caches ? STRIDED_PAST_CACHES : STRIDED_IN_CACHES);
    }
    if (past_caches)
        strided_fence();
    return BANYAN_OK;
}

static banyan_status pipeline_host_copy(void *context, banyan_stream stream,
                                        const DLTensor *destination, const DLTensor *source)
{
    (void)context;
    (void)stream;
    return banyan_tensor_copy(destination, source);
}

banyan_pipeline_launcher pipeline_host_launcher(const bool *past_caches)
{
    return (banyan_pipeline_launcher){.size = sizeof(banyan_pipeline_launcher),
                                      .context = (void *)(uintptr_t)past_caches,
                                      .pack = host_pack,
                                      .unpack = host_unpack,
                                      .copy = pipeline_host_copy};
}

const banyan_pipeline_launcher *banyan_pipeline_host_launcher(void)
{
    static const banyan_pipeline_launcher launcher = {.size = sizeof launcher,
                                                      .pack = host_pack,
                                                      .unpack = host_unpack,
                                                      .copy = pipeline_host_copy};
    return &launcher;
}
