/* The pipeline's first stage: cut tasks into segments that fit a slot. */
#ifndef COPY_SCHEDULE_SEGMENT_H
#define COPY_SCHEDULE_SEGMENT_H

#include "core/containers/array.h"

/* Segments start at multiples of this in a slot, for vector loads of a GPU. */
#define PIPELINE_SLOT_ALIGN 16

/* A task in planning: a row of elements. Both ends of it know these numbers. */
typedef struct pipeline_task {
    uint64_t elems;
    uint64_t elem_bytes; /* at least 1; elems * elem_bytes fits 63 bits */
} pipeline_task;

/* Elements [first_elem, first_elem + elem_count) of a task, elem_count at least 1. Tasks are
 * counted among those that two ranks have in this direction, in their common order. */
typedef struct pipeline_segment {
    size_t task;
    uint64_t first_elem;
    uint64_t elem_count;
    uint64_t slot_offset; /* in bytes; set when a batch takes the segment */
} pipeline_segment;

typedef ARRAY(pipeline_segment) pipeline_segments;

/* Append the task's segments, ascending. Their number is the minimum: all but the last have as many
 * elements as a slot holds. A task without elements has none. INVALID for an element that is larger
 * than a slot; NO_MEMORY. */
banyan_status pipeline_segment_cut(const pipeline_task *task, size_t index, uint64_t slot_bytes,
                                   pipeline_segments *segments);

/* Keep in `segment` the elements that fit in `room_bytes`; the others go to `rest`. False, without
 * a change, when all of it fits or not one element does. */
bool pipeline_segment_split(pipeline_segment *segment, uint64_t elem_bytes, uint64_t room_bytes,
                            pipeline_segment *rest);

#endif
