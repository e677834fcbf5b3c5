#include "reshard/transform/mxfp8_box.h"

#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "reshard/run/memory.h"

struct mxfp8_pending {
    banyan_box whole;
    mxfp8_memory values;
    size_t values_bytes;
    int64_t row_blocks;
    size_t block_count;
    uint8_t *marked; /* a byte per block, row by row */
};

/* Dimensions of a whole tensor. */
struct tensor_extent {
    uint64_t rows, row_blocks, values_bytes;
};

static bool mxfp8_pending_measure(DLDataType dtype, int ndim, const int64_t *shape,
                                  struct tensor_extent *extent)
{
    uint64_t bytes = banyan_dtype_bytes(dtype), rows = 1, total;
    bool overflows = false;
    for (int d = ndim - 1; d >= 0; d--) {
        overflows = overflows || __builtin_mul_overflow(bytes, (uint64_t)shape[d], &bytes);
        overflows =
            overflows || (d < ndim - 1 && __builtin_mul_overflow(rows, (uint64_t)shape[d], &rows));
    }
    *extent =
        (struct tensor_extent){rows, (uint64_t)mxfp8_blocks(ndim > 0 ? shape[ndim - 1] : 1), bytes};
    return !overflows && !__builtin_mul_overflow(rows, extent->row_blocks, &total) &&
           !__builtin_add_overflow(total, bytes, &total) && total < INT64_MAX;
}

bool mxfp8_pending_bytes(DLDataType dtype, int ndim, const int64_t *shape, uint64_t *bytes)
{
    struct tensor_extent extent;
    if (!mxfp8_pending_measure(dtype, ndim, shape, &extent))
        return false;
    *bytes = extent.values_bytes + extent.rows * extent.row_blocks;
    return true;
}

static int64_t counted_bytes(const mxfp8_pending *pending)
{
    return (int64_t)(pending->values_bytes + pending->block_count);
}

banyan_status mxfp8_pending_create(const char *name, DLDataType dtype, int ndim,
                                   const int64_t *shape, mxfp8_pending **pending)
{
    struct tensor_extent extent;
    mxfp8_pending *made = calloc(1, sizeof *made);
    if (!made)
        return error_no_memory(sizeof *made, name);
    if (!mxfp8_pending_measure(dtype, ndim, shape, &extent)) {
        free(made);
        return error_no_memory(SIZE_MAX, name);
    }
    int64_t stride = (int64_t)banyan_dtype_bytes(dtype);
    made->whole.ndim = ndim;
    made->values.dtype = dtype;
    for (int d = ndim - 1; d >= 0; d--) {
        made->whole.extent[d] = shape[d];
        made->values.stride[d] = stride;
        stride *= shape[d];
    }
    made->row_blocks = (int64_t)extent.row_blocks;
    made->values_bytes = (size_t)extent.values_bytes;
    made->block_count = (size_t)(extent.rows * extent.row_blocks);
    run_memory_count(counted_bytes(made));
    made->values.data = calloc(1, made->values_bytes + 1);
    made->marked = calloc(1, made->block_count + 1);
    if (!made->values.data || !made->marked) {
        mxfp8_pending_destroy(made);
        return error_no_memory((size_t)extent.values_bytes, name);
    }
    *pending = made;
    return BANYAN_OK;
}

void mxfp8_pending_destroy(mxfp8_pending *pending)
{
    if (!pending)
        return;
    run_memory_count(-counted_bytes(pending));
    free(pending->values.data);
    free(pending->marked);
    free(pending);
}

bool mxfp8_pending_fits(const mxfp8_pending *pending, DLDataType dtype, int ndim,
                        const int64_t *shape)
{
    bool fits = banyan_dtype_equal(pending->values.dtype, dtype) && pending->whole.ndim == ndim;
    for (int d = 0; d < ndim && fits; d++)
        fits = pending->whole.extent[d] == shape[d];
    return fits;
}

void mxfp8_pending_reset(mxfp8_pending *pending)
{
    memset(pending->values.data, 0, pending->values_bytes);
    memset(pending->marked, 0, pending->block_count);
}

void mxfp8_pending_memory(const mxfp8_pending *pending, const banyan_box *box, mxfp8_memory *memory)
{
    *memory = pending->values;
    for (int d = 0; d < box->ndim; d++)
        memory->data += box->start[d] * pending->values.stride[d];
}

static uint8_t *row_marks(const mxfp8_pending *pending, const mxfp8_rows *rows)
{
    int64_t row = 0;
    for (int d = 0; d < rows->outer; d++)
        row = row * pending->whole.extent[d] + rows->index[d];
    return pending->marked + row * pending->row_blocks;
}

void mxfp8_pending_mark(mxfp8_pending *pending, const banyan_box *box)
{
    for (mxfp8_rows rows = mxfp8_rows_begin(box); !rows.ended; mxfp8_rows_next(&rows)) {
        int64_t first = rows.first / MXFP8_BLOCK;
        int64_t end = mxfp8_blocks(rows.first + rows.length);
        memset(row_marks(pending, &rows) + first, 1, (size_t)(end - first));
    }
}

/* Quantize blocks first … end - 1 of a row. */
static void quantize_blocks(const mxfp8_pending *pending, const mxfp8_rows *rows, int64_t first,
                            int64_t end, banyan_mxfp8_rule rule, const mxfp8_memory *elements,
                            const mxfp8_scales *scales)
{
    banyan_box box = {.ndim = rows->box->ndim};
    mxfp8_memory from, to = *elements;
    for (int d = 0; d < rows->outer; d++) {
        box.start[d] = rows->index[d];
        box.extent[d] = 1;
    }
    if (box.ndim > 0) {
        int64_t stop = end * MXFP8_BLOCK;
        box.start[rows->outer] = first * MXFP8_BLOCK;
        box.extent[rows->outer] = (stop < rows->length ? stop : rows->length) - first * MXFP8_BLOCK;
    }
    mxfp8_pending_memory(pending, &box, &from);
    for (int d = 0; d < box.ndim; d++)
        to.data += box.start[d] * to.stride[d];
    mxfp8_box_quantize(rule, &box, &from, &to, scales);
}

void mxfp8_pending_quantize(const mxfp8_pending *pending, banyan_mxfp8_rule rule,
                            const mxfp8_memory *elements, const mxfp8_scales *scales)
{
    const banyan_box *whole = &pending->whole;
    for (mxfp8_rows rows = mxfp8_rows_begin(whole); !rows.ended; mxfp8_rows_next(&rows)) {
        const uint8_t *marks = row_marks(pending, &rows);
        for (int64_t first = 0, end; first < pending->row_blocks; first = end) {
            end = first + 1;
            if (!marks[first])
                continue;
            while (end < pending->row_blocks && marks[end])
                end++;
            quantize_blocks(pending, &rows, first, end, rule, elements, scales);
        }
    }
}
