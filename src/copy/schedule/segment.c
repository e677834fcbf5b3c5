#include "copy/schedule/segment.h"

#include <inttypes.h>

banyan_status pipeline_segment_cut(const pipeline_task *task, size_t index, uint64_t slot_bytes,
                                   pipeline_segments *segments)
{
    uint64_t most = slot_bytes / task->elem_bytes;
    if (most == 0 && task->elems > 0)
        return error_set(BANYAN_ERR_INVALID,
                         "pipeline: an element of %" PRIu64 " bytes does not fit a slot of %" PRIu64
                         " bytes",
                         task->elem_bytes, slot_bytes);
    if (task->elems == 0)
        return BANYAN_OK;
    uint64_t count = (task->elems - 1) / most + 1;
    if (!array_reserve(segments, count))
        return BANYAN_ERR_NO_MEMORY;
    for (uint64_t first = 0; first < task->elems; first += most) {
        uint64_t left = task->elems - first;
        segments->data[segments->count++] = (pipeline_segment){
            .task = index, .first_elem = first, .elem_count = left < most ? left : most};
    }
    return BANYAN_OK;
}

bool pipeline_segment_split(pipeline_segment *segment, uint64_t elem_bytes, uint64_t room_bytes,
                            pipeline_segment *rest)
{
    uint64_t fit = room_bytes / elem_bytes;
    if (fit == 0 || fit >= segment->elem_count)
        return false;
    *rest = (pipeline_segment){.task = segment->task,
                               .first_elem = segment->first_elem + fit,
                               .elem_count = segment->elem_count - fit};
    segment->elem_count = fit;
    return true;
}
