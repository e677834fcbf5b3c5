/* Convert boxes of strided tensors to and from MXFP8, row by row. */
#ifndef RESHARD_TRANSFORM_MXFP8_BOX_H
#define RESHARD_TRANSFORM_MXFP8_BOX_H

#include "reshard/transform/mxfp8_scales.h"

/* A box of a scaled tensor, in that tensor's coordinates: blocks run along the last dimension from
 * the tensor's start. */
typedef struct mxfp8_box {
    int ndim;
    int64_t start[BANYAN_MAX_DIMS];
    int64_t extent[BANYAN_MAX_DIMS];
} mxfp8_box;

/* Iterate over the rows of a box in row-major order: `for (mxfp8_rows rows = mxfp8_rows_begin(box);
 * !rows.ended; mxfp8_rows_next(&rows))`. */
typedef struct mxfp8_rows {
    const mxfp8_box *box;
    int outer;                      /* dimensions except the last */
    int64_t at[BANYAN_MAX_DIMS];    /* in the box */
    int64_t index[BANYAN_MAX_DIMS]; /* in the tensor */
    int64_t first, length;          /* along the last dimension */
    bool ended;
} mxfp8_rows;

mxfp8_rows mxfp8_rows_begin(const mxfp8_box *box);
void mxfp8_rows_next(mxfp8_rows *rows);

/* The memory of the box's elements: `data` is the first element's address, strides are in bytes. */
typedef struct mxfp8_memory {
    char *data;
    DLDataType dtype;
    int64_t stride[BANYAN_MAX_DIMS];
} mxfp8_memory;

/* Quantize a box that starts with a block, and ends with a block or with the tensor. */
void mxfp8_box_quantize(banyan_mxfp8_rule rule, const mxfp8_box *box, const mxfp8_memory *from,
                        const mxfp8_memory *elements, const mxfp8_scales *scales);

/* Dequantize any box. */
void mxfp8_box_dequantize(const mxfp8_box *box, const mxfp8_memory *elements,
                          const mxfp8_scales *scales, const mxfp8_memory *to);

/* Copy the scales of the box's blocks out or in. `box_scales` has the box's dimensions; the last
 * one is dense and counts blocks. The box is as for quantize. */
void mxfp8_box_scales_read(const mxfp8_box *box, const mxfp8_scales *scales,
                           const mxfp8_memory *box_scales);
void mxfp8_box_scales_write(const mxfp8_box *box, const mxfp8_scales *scales,
                            const mxfp8_memory *box_scales);

#endif
