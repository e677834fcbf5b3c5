#include "reshard/mxfp8_pending.h"

#include <stdlib.h>
#include <string.h>

#include "core/error.h"

struct mxfp8_pending {
    mxfp8_box whole;
    mxfp8_memory values;
    size_t values_bytes;
    int64_t row_blocks;
    size_t block_count;
    uint8_t *marked; /* a byte a block, row by row */
};

static int64_t row_length(const mxfp8_box *box)
{
    return box->ndim > 0 ? box->extent[box->ndim - 1] : 1;
}

banyan_status mxfp8_pending_create(const char *name, DLDataType dtype, int ndim,
                                   const int64_t *shape, mxfp8_pending **pending)
{
    mxfp8_pending *made = calloc(1, sizeof *made);
    if (!made)
        return error_no_memory(sizeof *made, name);
    made->whole.ndim = ndim;
    made->values.dtype = dtype;
    size_t bytes = banyan_dtype_bytes(dtype), rows = 1;
    bool overflows = false;
    for (int d = ndim - 1; d >= 0; d--) {
        made->whole.extent[d] = shape[d];
        made->values.stride[d] = (int64_t)bytes;
        overflows = overflows || __builtin_mul_overflow(bytes, (size_t)shape[d], &bytes);
        rows = d < ndim - 1 ? rows * (size_t)shape[d] : 1;
    }
    made->row_blocks = mxfp8_blocks(row_length(&made->whole));
    made->values_bytes = bytes;
    made->block_count = rows * (size_t)made->row_blocks;
    made->values.data = overflows ? NULL : calloc(1, bytes + 1);
    made->marked = overflows ? NULL : calloc(1, made->block_count + 1);
    if (!made->values.data || !made->marked) {
        mxfp8_pending_destroy(made);
        return error_no_memory(bytes, name);
    }
    *pending = made;
    return BANYAN_OK;
}

void mxfp8_pending_destroy(mxfp8_pending *pending)
{
    if (!pending)
        return;
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

void mxfp8_pending_memory(const mxfp8_pending *pending, const mxfp8_box *box, mxfp8_memory *memory)
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

void mxfp8_pending_mark(mxfp8_pending *pending, const mxfp8_box *box)
{
    for (mxfp8_rows rows = mxfp8_rows_begin(box); !rows.ended; mxfp8_rows_next(&rows)) {
        int64_t first = rows.first / MXFP8_BLOCK;
        int64_t end = mxfp8_blocks(rows.first + rows.length);
        memset(row_marks(pending, &rows) + first, 1, (size_t)(end - first));
    }
}

/* Blocks first … end - 1 of a row. */
static void quantize_blocks(const mxfp8_pending *pending, const mxfp8_rows *rows, int64_t first,
                            int64_t end, banyan_mxfp8_rule rule, const mxfp8_memory *elements,
                            const mxfp8_scales *scales)
{
    mxfp8_box box = {.ndim = rows->box->ndim};
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
    const mxfp8_box *whole = &pending->whole;
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
