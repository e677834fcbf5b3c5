#include "reshard/transform/mxfp8_box.h"

#include <inttypes.h>

#include "copy/strided/strided.h"
#include "core/error.h"

/* Blocks of a row that one pass takes through buffers on the stack. */
#define CHUNK_BLOCKS 64
#define CHUNK (CHUNK_BLOCKS * MXFP8_BLOCK)

mxfp8_rows mxfp8_rows_begin(const banyan_box *box)
{
    mxfp8_rows rows = {.box = box, .outer = box->ndim > 0 ? box->ndim - 1 : 0, .length = 1};
    for (int d = 0; d < box->ndim; d++) {
        rows.index[d] = box->start[d];
        rows.ended = rows.ended || box->extent[d] == 0;
    }
    if (box->ndim > 0) {
        rows.first = box->start[rows.outer];
        rows.length = box->extent[rows.outer];
    }
    return rows;
}

void mxfp8_rows_next(mxfp8_rows *rows)
{
    for (int d = rows->outer - 1; d >= 0; d--) {
        rows->index[d]++;
        if (++rows->at[d] < rows->box->extent[d])
            return;
        rows->at[d] = 0;
        rows->index[d] = rows->box->start[d];
    }
    rows->ended = true;
}

/* Return elements first … first + count - 1 of a row, as a view. */
static strided_view row_run(const mxfp8_rows *rows, const mxfp8_memory *memory, int64_t first,
                            int64_t count)
{
    int64_t along = rows->box->ndim > 0 ? memory->stride[rows->outer] : 0;
    strided_view run = {.data = memory->data + first * along,
                        .elem_bytes = banyan_dtype_bytes(memory->dtype),
                        .elems = (uint64_t)count,
                        .ndim = count > 1,
                        .extent = {count},
                        .stride = {along}};
    for (int d = 0; d < rows->outer; d++)
        run.data += rows->at[d] * memory->stride[d];
    return run;
}

static bool run_is_dense(const strided_view *run)
{
    return run->ndim == 0 || run->stride[0] == (int64_t)run->elem_bytes;
}

static const void *run_load(const strided_view *run, void *buffer)
{
    if (run_is_dense(run))
        return run->data;
    strided_pack(buffer, run, 0, run->elems);
    return buffer;
}

static void *run_target(const strided_view *run, void *buffer)
{
    return run_is_dense(run) ? run->data : buffer;
}

static void run_store(const strided_view *run, const void *data)
{
    if (data != run->data)
        strided_unpack(run, 0, run->elems, data);
}

void mxfp8_box_quantize(banyan_mxfp8_rule rule, const banyan_box *box, const mxfp8_memory *from,
                        const mxfp8_memory *elements, const mxfp8_scales *scales)
{
    float loaded[CHUNK];
    uint8_t quantized[CHUNK], chunk_scales[CHUNK_BLOCKS];
    for (mxfp8_rows rows = mxfp8_rows_begin(box); !rows.ended; mxfp8_rows_next(&rows)) {
        for (int64_t i = 0; i < rows.length; i += CHUNK) {
            int64_t count = rows.length - i < CHUNK ? rows.length - i : CHUNK;
            strided_view source = row_run(&rows, from, i, count);
            strided_view target = row_run(&rows, elements, i, count);
            uint8_t *out = run_target(&target, quantized);
            mxfp8_quantize(rule, run_load(&source, loaded), from->dtype, count, out, chunk_scales);
            run_store(&target, out);
            mxfp8_scales_write(scales, rows.index, (rows.first + i) / MXFP8_BLOCK,
                               mxfp8_blocks(count), chunk_scales);
        }
    }
}

void mxfp8_box_dequantize(const banyan_box *box, const mxfp8_memory *elements,
                          const mxfp8_scales *scales, const mxfp8_memory *to)
{
    float values[CHUNK];
    uint8_t loaded[CHUNK], chunk_scales[CHUNK_BLOCKS];
    for (mxfp8_rows rows = mxfp8_rows_begin(box); !rows.ended; mxfp8_rows_next(&rows)) {
        for (int64_t i = 0, count; i < rows.length; i += count) {
            /* A row that starts inside a block first continues to that block's end. */
            int64_t in_block = (rows.first + i) % MXFP8_BLOCK, left = rows.length - i;
            count = in_block > 0 ? MXFP8_BLOCK - in_block : CHUNK;
            count = left < count ? left : count;
            strided_view source = row_run(&rows, elements, i, count);
            strided_view target = row_run(&rows, to, i, count);
            void *out = run_target(&target, values);
            mxfp8_scales_read(scales, rows.index, (rows.first + i) / MXFP8_BLOCK,
                              mxfp8_blocks(count), chunk_scales);
            mxfp8_dequantize(run_load(&source, loaded), chunk_scales, count, out, to->dtype);
            run_store(&target, out);
        }
    }
}

void mxfp8_box_scales_read(const banyan_box *box, const mxfp8_scales *scales,
                           const mxfp8_memory *box_scales)
{
    for (mxfp8_rows rows = mxfp8_rows_begin(box); !rows.ended; mxfp8_rows_next(&rows)) {
        int64_t blocks = mxfp8_blocks(rows.length);
        strided_view row = row_run(&rows, box_scales, 0, blocks);
        mxfp8_scales_read(scales, rows.index, rows.first / MXFP8_BLOCK, blocks,
                          (uint8_t *)row.data);
    }
}

void mxfp8_box_scales_write(const banyan_box *box, const mxfp8_scales *scales,
                            const mxfp8_memory *box_scales)
{
    for (mxfp8_rows rows = mxfp8_rows_begin(box); !rows.ended; mxfp8_rows_next(&rows)) {
        int64_t blocks = mxfp8_blocks(rows.length);
        strided_view row = row_run(&rows, box_scales, 0, blocks);
        mxfp8_scales_write(scales, rows.index, rows.first / MXFP8_BLOCK, blocks,
                           (const uint8_t *)row.data);
    }
}

void mxfp8_task_box(const banyan_transform_task *task, banyan_box *box)
{
    *box = (banyan_box){.ndim = task->whole->ndim};
    for (int d = 0; d < box->ndim; d++) {
        box->start[d] = task->local_start[d];
        box->extent[d] = 1;
    }
    for (int g = 0; g < task->local->ndim; g++)
        if (task->dim_map[g] != BANYAN_NO_DIM)
            box->extent[task->dim_map[g]] = task->local->shape[g];
}

void mxfp8_task_wire_box(const banyan_transform_task *task, banyan_box *box)
{
    *box = (banyan_box){.ndim = task->local->ndim};
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
    banyan_box box;
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
