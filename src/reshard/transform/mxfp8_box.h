/* Convert boxes of strided tensors to and from MXFP8, row by row. */
#ifndef RESHARD_TRANSFORM_MXFP8_BOX_H
#define RESHARD_TRANSFORM_MXFP8_BOX_H

#include "reshard/transform/mxfp8.h"

/* Placement of an MXFP8 tensor's scales: a plain matrix, or tiles for tensor cores. */

typedef struct mxfp8_scales {
    banyan_mxfp8_layout layout;
    uint8_t *data;
    int ndim; /* of the scaled tensor */
    int64_t shape[BANYAN_MAX_DIMS];
    int64_t stride[BANYAN_MAX_DIMS]; /* plain: bytes; swizzled: matrices, without the last two */
    int64_t tile_rows, tile_cols;    /* of a swizzled matrix, in tiles */
} mxfp8_scales;

/* Describe the scales of a tensor of this shape. INVALID names the tensor and both shapes when
 * `scales` does not fit it. */
banyan_status mxfp8_scales_of(banyan_mxfp8_layout layout, const char *name, int ndim,
                              const int64_t *shape, const DLTensor *scales, mxfp8_scales *view);

/* Write, or read, the scales of blocks first … first + count - 1 of a row. `index` points into the
 * tensor; its last entry is ignored. */
void mxfp8_scales_write(const mxfp8_scales *view, const int64_t *index, int64_t first,
                        int64_t count, const uint8_t *scales);
void mxfp8_scales_read(const mxfp8_scales *view, const int64_t *index, int64_t first, int64_t count,
                       uint8_t *scales);

/* Zero all scales, and the gaps between and behind them in a swizzled matrix. */
void mxfp8_scales_clear(const mxfp8_scales *view);

/* A box of a scaled tensor is in that tensor's coordinates: blocks run along the last dimension
 * from the tensor's start. */

/* Iterate over the rows of a box in row-major order: `for (mxfp8_rows rows = mxfp8_rows_begin(box);
 * !rows.ended; mxfp8_rows_next(&rows))`. */
typedef struct mxfp8_rows {
    const banyan_box *box;
    int outer;                      /* dimensions except the last */
    int64_t at[BANYAN_MAX_DIMS];    /* in the box */
    int64_t index[BANYAN_MAX_DIMS]; /* in the tensor */
    int64_t first, length;          /* along the last dimension */
    bool ended;
} mxfp8_rows;

mxfp8_rows mxfp8_rows_begin(const banyan_box *box);
void mxfp8_rows_next(mxfp8_rows *rows);

/* The memory of the box's elements: `data` is the first element's address, strides are in bytes. */
typedef struct mxfp8_memory {
    char *data;
    DLDataType dtype;
    int64_t stride[BANYAN_MAX_DIMS];
} mxfp8_memory;

/* Quantize a box that starts with a block, and ends with a block or with the tensor. */
void mxfp8_box_quantize(banyan_mxfp8_rule rule, const banyan_box *box, const mxfp8_memory *from,
                        const mxfp8_memory *elements, const mxfp8_scales *scales);

/* Dequantize any box. */
void mxfp8_box_dequantize(const banyan_box *box, const mxfp8_memory *elements,
                          const mxfp8_scales *scales, const mxfp8_memory *to);

/* Copy the scales of the box's blocks out or in. `box_scales` has the box's dimensions; the last
 * one is dense and counts blocks. The box is as for quantize. */
void mxfp8_box_scales_read(const banyan_box *box, const mxfp8_scales *scales,
                           const mxfp8_memory *box_scales);
void mxfp8_box_scales_write(const banyan_box *box, const mxfp8_scales *scales,
                            const mxfp8_memory *box_scales);

/* Relate the box of a transform's task to the blocks of its local tensor. */

/* Return the task's box in the local tensor's coordinates. */
void mxfp8_task_box(const banyan_transform_task *task, banyan_box *box);

/* Return the box on its own, in the order in which its elements travel. */
void mxfp8_task_wire_box(const banyan_transform_task *task, banyan_box *box);

void mxfp8_memory_of(const DLTensor *tensor, mxfp8_memory *memory);

/* Describe the memory of a tensor of the box's shape as it travels, in the local tensor's order of
 * dimensions. */
void mxfp8_task_memory(const banyan_transform_task *task, const DLTensor *tensor,
                       mxfp8_memory *memory);

/* True if the box starts or ends inside a block; `*block` is the first that it cuts. */
bool mxfp8_task_cuts_block(const banyan_transform_task *task, int64_t *block);

/* INVALID, naming tensor, box and block, when the box cuts a block, and when blocks do not run
 * along the dimension in which elements travel fastest. */
banyan_status mxfp8_task_require_whole_blocks(const banyan_transform_task *task);

/* A tensor that is quantized after all of it has arrived, since its slices cut blocks. */

typedef struct mxfp8_pending mxfp8_pending;

/* Return the bytes of a whole tensor of this shape, dense, in the type of its slices. False when no
 * memory can be that large. */
bool mxfp8_pending_bytes(DLDataType dtype, int ndim, const int64_t *shape, uint64_t *bytes);

/* Allocate that memory, zeroed. It counts as memory of runs. */
banyan_status mxfp8_pending_create(const char *name, DLDataType dtype, int ndim,
                                   const int64_t *shape, mxfp8_pending **pending);
void mxfp8_pending_destroy(mxfp8_pending *pending);

/* True if it was made for this type and shape. */
bool mxfp8_pending_fits(const mxfp8_pending *pending, DLDataType dtype, int ndim,
                        const int64_t *shape);

/* Zero the values, and clear all marks. */
void mxfp8_pending_reset(mxfp8_pending *pending);

/* Return the memory at a box's first element. */
void mxfp8_pending_memory(const mxfp8_pending *pending, const banyan_box *box,
                          mxfp8_memory *memory);

/* Mark a box that has arrived: its blocks are to be quantized. */
void mxfp8_pending_mark(mxfp8_pending *pending, const banyan_box *box);

/* Quantize every marked block into `elements`, the whole tensor's memory. */
void mxfp8_pending_quantize(const mxfp8_pending *pending, banyan_mxfp8_rule rule,
                            const mxfp8_memory *elements, const mxfp8_scales *scales);

#endif
