/* The pipeline's second stage: all that goes from one rank to another becomes batches, each the
 * contents of one slot. */
#ifndef COPY_SCHEDULE_BATCH_H
#define COPY_SCHEDULE_BATCH_H

#include "copy/schedule/segment.h"

#define PIPELINE_BATCH_TASKS 10000

/* One slot's contents: a run of the list's segments. */
typedef struct pipeline_batch {
    size_t first_segment;
    size_t segment_count;
    uint64_t bytes; /* of the slot, from its start, that are used */
} pipeline_batch;

/* Where a further segment of the batch begins. */
static inline uint64_t pipeline_batch_next_offset(const pipeline_batch *batch)
{
    return (batch->bytes + PIPELINE_SLOT_ALIGN - 1) / PIPELINE_SLOT_ALIGN * PIPELINE_SLOT_ALIGN;
}

typedef struct pipeline_batches {
    pipeline_segments segments;
    ARRAY(pipeline_batch) list;
} pipeline_batches;

/* Pack the tasks from one rank to another. What fills a slot alone comes first. The rest, small
 * tasks and the last segments of large ones, follows largest first; what does not fit whole into
 * what is left of a slot is cut at its end. So every batch but the last has 10,000 tasks, or is
 * full but for less than the next element and its alignment: there are at most
 *
 *     ⌈Σ bytes, each task's rounded up to 16 / (slot - largest element - 15)⌉ + tasks / 9,999
 *
 * batches, where ⌈Σ bytes / slot⌉ is the least there can be. The order depends on the sizes alone,
 * and the segments of a task come in ascending order. n log n in the number of tasks. */
banyan_status pipeline_batch_pack(const pipeline_task *tasks, size_t task_count,
                                  uint64_t slot_bytes, pipeline_batches *batches);
void pipeline_batches_free(pipeline_batches *batches);

#endif
