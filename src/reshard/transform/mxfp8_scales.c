#include "reshard/transform/mxfp8_box.h"

#include <inttypes.h>
#include <string.h>

#include "core/error.h"
#include "reshard/layout/box.h"

#define TILE_ROWS 128
#define TILE_COLS 4
#define TILE_BYTES (TILE_ROWS * TILE_COLS)

static int64_t tile_count(int64_t count, int64_t size)
{
    return count / size + (count % size != 0);
}

static int64_t matrix_rows(int ndim, const int64_t *shape)
{
    return ndim >= 2 ? shape[ndim - 2] : 1;
}

static int64_t row_blocks(int ndim, const int64_t *shape)
{
    return ndim >= 1 ? mxfp8_blocks(shape[ndim - 1]) : 1;
}

banyan_status banyan_mxfp8_scales_shape(banyan_mxfp8_layout layout, int ndim, const int64_t *shape,
                                        int *scales_ndim, int64_t *scales_shape)
{
    if (ndim < 0 || ndim > BANYAN_MAX_DIMS)
        return error_set(BANYAN_ERR_INVALID, "a tensor of %d dimensions has no scales", ndim);
    int64_t out[BANYAN_MAX_DIMS] = {0}, elems = 1;
    bool fits = true;
    for (int d = 0; d < ndim; d++) {
        if (shape[d] < 0)
            return error_set(BANYAN_ERR_INVALID, "dimension %d is %" PRId64, d, shape[d]);
        out[d] = shape[d];
    }
    if (layout == BANYAN_MXFP8_PLAIN) {
        if (ndim > 0)
            out[ndim - 1] = row_blocks(ndim, shape);
        for (int d = 0; d < ndim; d++)
            fits = fits && !__builtin_mul_overflow(elems, out[d], &elems);
        *scales_ndim = ndim;
    } else {
        elems = TILE_BYTES;
        for (int d = 0; d + 2 < ndim; d++)
            fits = fits && !__builtin_mul_overflow(elems, shape[d], &elems);
        int64_t rows = tile_count(matrix_rows(ndim, shape), TILE_ROWS);
        int64_t cols = tile_count(row_blocks(ndim, shape), TILE_COLS);
        fits = fits && !__builtin_mul_overflow(elems, rows, &elems) &&
               !__builtin_mul_overflow(elems, cols, &elems);
        out[0] = elems;
        *scales_ndim = 1;
    }
    if (!fits)
        return error_set(BANYAN_ERR_INVALID, "a tensor's scales take more than 2^63 bytes");
    memcpy(scales_shape, out, sizeof out[0] * (size_t)(*scales_ndim));
    return BANYAN_OK;
}

static banyan_status mxfp8_scales_check_scales(const char *name, int ndim, const int64_t *shape,
                                               int want_ndim, const int64_t *want,
                                               const DLTensor *scales)
{
    if (!banyan_dtype_equal(scales->dtype, BANYAN_U8) &&
        !banyan_dtype_equal(scales->dtype, BANYAN_F8_E8M0))
        return error_set(BANYAN_ERR_INVALID, "the scales of %s are %s, not U8 or F8_E8M0", name,
                         banyan_dtype_name(scales->dtype));
    bool equal = scales->ndim == want_ndim;
    for (int d = 0; equal && d < want_ndim; d++)
        equal = scales->shape[d] == want[d];
    char of[BOX_TEXT_BYTES], have[BOX_TEXT_BYTES], need[BOX_TEXT_BYTES];
    if (!equal)
        return error_set(BANYAN_ERR_INVALID,
                         "the scales of %s, of shape %s, have shape %s and must have %s", name,
                         shape_format(ndim, shape, of, sizeof of),
                         shape_format(scales->ndim, scales->shape, have, sizeof have),
                         shape_format(want_ndim, want, need, sizeof need));
    return BANYAN_OK;
}

banyan_status mxfp8_scales_of(banyan_mxfp8_layout layout, const char *name, int ndim,
                              const int64_t *shape, const DLTensor *scales, mxfp8_scales *view)
{
    int64_t want[BANYAN_MAX_DIMS];
    int want_ndim;
    RETURN_IF_FAILED(banyan_mxfp8_scales_shape(layout, ndim, shape, &want_ndim, want));
    RETURN_IF_FAILED(mxfp8_scales_check_scales(name, ndim, shape, want_ndim, want, scales));
    bool strided = scales->strides && want_ndim == 1 && want[0] > 1 && scales->strides[0] != 1;
    if (layout == BANYAN_MXFP8_SWIZZLED && strided)
        return error_set(BANYAN_ERR_INVALID,
                         "the swizzled scales of %s are not dense: stride %" PRId64, name,
                         scales->strides[0]);
    mxfp8_scales made = {.layout = layout,
                         .data = (uint8_t *)scales->data + scales->byte_offset,
                         .ndim = ndim,
                         .tile_rows = tile_count(matrix_rows(ndim, shape), TILE_ROWS),
                         .tile_cols = tile_count(row_blocks(ndim, shape), TILE_COLS)};
    for (int d = 0; d < ndim; d++)
        made.shape[d] = shape[d];
    int64_t dense = 1;
    int last = layout == BANYAN_MXFP8_PLAIN ? ndim - 1 : ndim - 3;
    for (int d = last; d >= 0; d--) {
        made.stride[d] =
            layout == BANYAN_MXFP8_PLAIN && scales->strides ? scales->strides[d] : dense;
        dense *= layout == BANYAN_MXFP8_PLAIN ? want[d] : shape[d];
    }
    *view = made;
    return BANYAN_OK;
}

static uint8_t *swizzled_row(const mxfp8_scales *view, int64_t matrix, int64_t row)
{
    int64_t tile = (matrix * view->tile_rows + row / TILE_ROWS) * view->tile_cols;
    int64_t row_in_tile = row % TILE_ROWS;
    return view->data + tile * TILE_BYTES + row_in_tile % 32 * 16 + row_in_tile / 32 * TILE_COLS;
}

/* Return block 0 of a row. */
static uint8_t *row_start(const mxfp8_scales *view, const int64_t *index)
{
    int outer = view->layout == BANYAN_MXFP8_PLAIN ? view->ndim - 1 : view->ndim - 2;
    int64_t offset = 0;
    for (int d = 0; d < outer; d++)
        offset += index[d] * view->stride[d];
    if (view->layout == BANYAN_MXFP8_PLAIN)
        return view->data + offset;
    return swizzled_row(view, offset, view->ndim >= 2 ? index[view->ndim - 2] : 0);
}

static int64_t block_offset(const mxfp8_scales *view, int64_t block)
{
    if (view->layout == BANYAN_MXFP8_SWIZZLED)
        return block / TILE_COLS * TILE_BYTES + block % TILE_COLS;
    return view->ndim >= 1 ? block * view->stride[view->ndim - 1] : 0;
}

void mxfp8_scales_write(const mxfp8_scales *view, const int64_t *index, int64_t first,
                        int64_t count, const uint8_t *scales)
{
    uint8_t *row = row_start(view, index);
    for (int64_t b = 0; b < count; b++)
        row[block_offset(view, first + b)] = scales[b];
}

void mxfp8_scales_read(const mxfp8_scales *view, const int64_t *index, int64_t first, int64_t count,
                       uint8_t *scales)
{
    const uint8_t *row = row_start(view, index);
    for (int64_t b = 0; b < count; b++)
        scales[b] = row[block_offset(view, first + b)];
}

void mxfp8_scales_clear(const mxfp8_scales *view)
{
    int64_t matrices = 1, rows = matrix_rows(view->ndim, view->shape), at[BANYAN_MAX_DIMS] = {0};
    int64_t blocks = row_blocks(view->ndim, view->shape);
    for (int d = 0; d + 2 < view->ndim; d++)
        matrices *= view->shape[d];
    if (view->layout == BANYAN_MXFP8_SWIZZLED) {
        memset(view->data, 0, (size_t)(matrices * view->tile_rows * view->tile_cols * TILE_BYTES));
        return;
    }
    for (int64_t row = 0; row < matrices * rows; row++) {
        int64_t left = row;
        for (int d = view->ndim - 2; d >= 0; d--) {
            at[d] = left % view->shape[d];
            left /= view->shape[d];
        }
        uint8_t *start = row_start(view, at);
        for (int64_t b = 0; b < blocks; b++)
            start[block_offset(view, b)] = 0;
    }
}
