#include "reshard/transform/mxfp8_box.h"

#include "copy/strided/strided.h"

/* Blocks of a row that one pass takes through buffers on the stack. */
#define CHUNK_BLOCKS 64
#define CHUNK (CHUNK_BLOCKS * MXFP8_BLOCK)

mxfp8_rows mxfp8_rows_begin(const mxfp8_box *box)
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

void mxfp8_box_quantize(banyan_mxfp8_rule rule, const mxfp8_box *box, const mxfp8_memory *from,
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

/* Return the elements until the next chunk: a row that starts inside a block first continues to
 * that block's end. */
static int64_t chunk_length(int64_t position, int64_t left)
{
    int64_t in_block = position % MXFP8_BLOCK;
    int64_t length = in_block > 0 ? MXFP8_BLOCK - in_block : CHUNK;
    return left < length ? left : length;
}

void mxfp8_box_dequantize(const mxfp8_box *box, const mxfp8_memory *elements,
                          const mxfp8_scales *scales, const mxfp8_memory *to)
{
    float values[CHUNK];
    uint8_t loaded[CHUNK], chunk_scales[CHUNK_BLOCKS];
    for (mxfp8_rows rows = mxfp8_rows_begin(box); !rows.ended; mxfp8_rows_next(&rows)) {
        for (int64_t i = 0, count; i < rows.length; i += count) {
            count = chunk_length(rows.first + i, rows.length - i);
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

void mxfp8_box_scales_read(const mxfp8_box *box, const mxfp8_scales *scales,
                           const mxfp8_memory *box_scales)
{
    for (mxfp8_rows rows = mxfp8_rows_begin(box); !rows.ended; mxfp8_rows_next(&rows)) {
        int64_t blocks = mxfp8_blocks(rows.length);
        strided_view row = row_run(&rows, box_scales, 0, blocks);
        mxfp8_scales_read(scales, rows.index, rows.first / MXFP8_BLOCK, blocks,
                          (uint8_t *)row.data);
    }
}

void mxfp8_box_scales_write(const mxfp8_box *box, const mxfp8_scales *scales,
                            const mxfp8_memory *box_scales)
{
    for (mxfp8_rows rows = mxfp8_rows_begin(box); !rows.ended; mxfp8_rows_next(&rows)) {
        int64_t blocks = mxfp8_blocks(rows.length);
        strided_view row = row_run(&rows, box_scales, 0, blocks);
        mxfp8_scales_write(scales, rows.index, rows.first / MXFP8_BLOCK, blocks,
                           (const uint8_t *)row.data);
    }
}
