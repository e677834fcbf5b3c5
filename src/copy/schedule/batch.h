/* The pipeline's second stage: pack everything from one rank to another into batches, each the
 * contents of one slot. */
#ifndef COPY_SCHEDULE_BATCH_H
#define COPY_SCHEDULE_BATCH_H

#include "core/containers.h"

/* The pipeline's first stage: cut tasks into segments that fit a slot. */

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

#define PIPELINE_BATCH_TASKS 10000

/* One slot's contents: consecutive segments of the list. */
typedef struct pipeline_batch {
    size_t first_segment;
    size_t segment_count;
    uint64_t bytes; /* used bytes from the start of the slot */
} pipeline_batch;

/* Return the offset of the batch's next segment. */
static inline uint64_t pipeline_batch_next_offset(const pipeline_batch *batch)
{
    return (batch->bytes + PIPELINE_SLOT_ALIGN - 1) / PIPELINE_SLOT_ALIGN * PIPELINE_SLOT_ALIGN;
}

typedef struct pipeline_batches {
    pipeline_segments segments;
    ARRAY(pipeline_batch) list;
} pipeline_batches;

/* Pack the tasks from one rank to another. Segments that fill a slot alone come first. The rest,
 * small tasks and the last segments of large ones, follows largest first; one that does not fit the
 * rest of a slot is cut at the slot's end. So every batch but the last has 10,000 tasks, or has no
 * space for the next element and its alignment. The number of batches is at most
 *
 *     ⌈Σ bytes, each task's rounded up to 16 / (slot - largest element - 15)⌉ + tasks / 9,999
 *
 * The lower bound is ⌈Σ bytes / slot⌉. The order depends on the sizes alone, and the segments of a
 * task come in ascending order. The time is n log n in the number of tasks. */
banyan_status pipeline_batch_pack(const pipeline_task *tasks, size_t task_count,
                                  uint64_t slot_bytes, pipeline_batches *batches);
void pipeline_batches_free(pipeline_batches *batches);

#endif
