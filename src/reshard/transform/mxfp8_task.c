#include "reshard/transform/mxfp8_task.h"

#include <inttypes.h>

#include "core/error.h"

void mxfp8_task_box(const banyan_transform_task *task, mxfp8_box *box)
{
    *box = (mxfp8_box){.ndim = task->whole->ndim};
    for (int d = 0; d < box->ndim; d++) {
        box->start[d] = task->local_start[d];
        box->extent[d] = 1;
    }
    for (int g = 0; g < task->local->ndim; g++)
        if (task->dim_map[g] != BANYAN_NO_DIM)
            box->extent[task->dim_map[g]] = task->local->shape[g];
}

void mxfp8_task_wire_box(const banyan_transform_task *task, mxfp8_box *box)
{
    *box = (mxfp8_box){.ndim = task->local->ndim};
    for (int g = 0; g < box->ndim; g++)
        box->extent[g] = task->local->shape[g];
}

void mxfp8_memory_of(const DLTensor *tensor, mxfp8_memory *memory)
{
    int64_t elem_bytes = (int64_t)banyan_dtype_bytes(tensor->dtype), dense = elem_bytes;
    *memory =
        (mxfp8_memory){.data = (char *)tensor->data + tensor->byte_offset, .dtype = tensor->dtype};
    for (int d = tensor->ndim - 1; d >= 0; d--) {
        memory->stride[d] = tensor->strides ? tensor->strides[d] * elem_bytes : dense;
        dense *= tensor->shape[d];
    }
}

void mxfp8_task_memory(const banyan_transform_task *task, const DLTensor *tensor,
                       mxfp8_memory *memory)
{
    mxfp8_memory travels;
    mxfp8_memory_of(tensor, &travels);
    *memory = (mxfp8_memory){.data = travels.data, .dtype = travels.dtype};
    for (int g = 0; g < tensor->ndim; g++)
        if (task->dim_map[g] != BANYAN_NO_DIM)
            memory->stride[task->dim_map[g]] = travels.stride[g];
}

bool mxfp8_task_cuts_block(const banyan_transform_task *task, int64_t *block)
{
    mxfp8_box box;
    mxfp8_task_box(task, &box);
    if (box.ndim == 0)
        return false;
    int along = box.ndim - 1;
    int64_t start = box.start[along], end = start + box.extent[along];
    *block = (start % MXFP8_BLOCK != 0 ? start : end) / MXFP8_BLOCK;
    return start % MXFP8_BLOCK != 0 || (end % MXFP8_BLOCK != 0 && end != task->whole->shape[along]);
}

banyan_status mxfp8_task_require_whole_blocks(const banyan_transform_task *task)
{
    const banyan_transfer *transfer = task->transfer;
    char box[256];
    int64_t block;
    banyan_box_format(&transfer->box, box, sizeof box);
    const char *fix = banyan_dtype_equal(transfer->destination_dtype, BANYAN_F8_E4M3)
                          ? "quantize it at the receiver"
                          : "read it at the sender";
    if (mxfp8_task_cuts_block(task, &block))
        return error_set(BANYAN_ERR_INVALID,
                         "tensor %s, box %s from rank %d to rank %d cuts MXFP8 block %" PRId64
                         " (elements %" PRId64 " to %" PRId64
                         " along the last dimension of local tensor %s): %s, or cut elsewhere",
                         transfer->name, box, transfer->source_rank, transfer->destination_rank,
                         block, block * MXFP8_BLOCK, (block + 1) * MXFP8_BLOCK, task->local_name,
                         fix);
    int last = task->local->ndim - 1;
    if (task->whole->ndim > 0 && (last < 0 || task->dim_map[last] != task->whole->ndim - 1))
        return error_set(BANYAN_ERR_INVALID,
                         "tensor %s, box %s from rank %d to rank %d: the last dimension of local "
                         "tensor %s, along which MXFP8 blocks run, is not the last of the global "
                         "tensor: %s",
                         transfer->name, box, transfer->source_rank, transfer->destination_rank,
                         task->local_name, fix);
    return BANYAN_OK;
}
