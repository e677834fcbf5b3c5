#include "copy/schedule/batch.h"

#include <inttypes.h>

typedef struct sized_segment {
    uint64_t bytes;
    pipeline_segment segment;
} sized_segment;

/* Largest first; equal sizes stay in the tasks' order, so that the result is deterministic. */
static int by_size(const void *left, const void *right)
{
    const sized_segment *a = left, *b = right;
    if (a->bytes != b->bytes)
        return a->bytes > b->bytes ? -1 : 1;
    return a->segment.task < b->segment.task ? -1 : a->segment.task > b->segment.task;
}

static bool batch_open(pipeline_batches *batches)
{
    return array_push(&batches->list, (pipeline_batch){.first_segment = batches->segments.count});
}

static bool batch_add(pipeline_batches *batches, pipeline_segment segment, uint64_t elem_bytes,
                      uint64_t offset)
{
    pipeline_batch *batch = &batches->list.data[batches->list.count - 1];
    segment.slot_offset = offset;
    if (!array_push(&batches->segments, segment))
        return false;
    batch->segment_count++;
    batch->bytes = offset + segment.elem_count * elem_bytes;
    return true;
}

static bool batch_alone(pipeline_batches *batches, pipeline_segment segment, uint64_t elem_bytes)
{
    return batch_open(batches) && batch_add(batches, segment, elem_bytes, 0);
}

/* Fill the open batch, and open further ones as needed. */
static bool batch_fill(pipeline_batches *batches, pipeline_segment segment, uint64_t elem_bytes,
                       uint64_t slot_bytes)
{
    const pipeline_batch *batch = &batches->list.data[batches->list.count - 1];
    uint64_t offset = pipeline_batch_next_offset(batch);
    uint64_t room = offset < slot_bytes ? slot_bytes - offset : 0;
    if (batch->segment_count == PIPELINE_BATCH_TASKS || room < elem_bytes)
        return batch_alone(batches, segment, elem_bytes);
    pipeline_segment rest;
    if (!pipeline_segment_split(&segment, elem_bytes, room, &rest))
        return batch_add(batches, segment, elem_bytes, offset);
    return batch_add(batches, segment, elem_bytes, offset) &&
           batch_alone(batches, rest, elem_bytes);
}

/* Cut every task: segments that fill a slot become a batch at once, the rest goes to `small`. */
static banyan_status batch_large(const pipeline_task *tasks, size_t task_count, uint64_t slot_bytes,
                                 pipeline_batches *batches, sized_segment *small, size_t *count)
{
    pipeline_segments cut = {0};
    banyan_status status = BANYAN_OK;
    size_t left = 0;
    for (size_t i = 0; i < task_count && status == BANYAN_OK; i++) {
        uint64_t elem_bytes = tasks[i].elem_bytes;
        cut.count = 0;
        status = pipeline_segment_cut(&tasks[i], i, slot_bytes, &cut);
        for (size_t k = 0; k < cut.count && status == BANYAN_OK; k++) {
            uint64_t bytes = cut.data[k].elem_count * elem_bytes;
            if (slot_bytes - bytes >= elem_bytes)
                small[left++] = (sized_segment){bytes, cut.data[k]};
            else if (!batch_alone(batches, cut.data[k], elem_bytes))
                status = BANYAN_ERR_NO_MEMORY;
        }
    }
    array_free(&cut);
    *count = left;
    return status;
}

static bool batch_small(const pipeline_task *tasks, uint64_t slot_bytes, const sized_segment *small,
                        size_t count, pipeline_batches *batches)
{
    if (count > 0 && !batch_open(batches))
        return false;
    for (size_t i = 0; i < count; i++) {
        uint64_t elem_bytes = tasks[small[i].segment.task].elem_bytes;
        if (!batch_fill(batches, small[i].segment, elem_bytes, slot_bytes))
            return false;
    }
    return true;
}

banyan_status pipeline_batch_pack(const pipeline_task *tasks, size_t task_count,
                                  uint64_t slot_bytes, pipeline_batches *batches)
{
    /* Only a task's last segment can be smaller than a slot. */
    sized_segment *small = alloc_zeroed(task_count, sizeof *small, "a batch's small tasks");
    RETURN_IF_NO_MEMORY(small);
    pipeline_batches packed = {0};
    size_t count;
    banyan_status status = batch_large(tasks, task_count, slot_bytes, &packed, small, &count);
    if (status != BANYAN_OK)
        goto free_packed;
    qsort(small, count, sizeof *small, by_size);
    if (!batch_small(tasks, slot_bytes, small, count, &packed)) {
        status = BANYAN_ERR_NO_MEMORY;
        goto free_packed;
    }
    *batches = packed;
    free(small);
    return BANYAN_OK;

free_packed:
    pipeline_batches_free(&packed);
    free(small);
    return status;
}

void pipeline_batches_free(pipeline_batches *batches)
{
    array_free(&batches->segments);
    array_free(&batches->list);
}

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
    RETURN_IF_NO_MEMORY(array_reserve(segments, count));
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
