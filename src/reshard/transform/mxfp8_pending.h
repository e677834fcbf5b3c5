/* A tensor that is quantized after all of it has arrived, since its slices cut blocks. */
#ifndef RESHARD_TRANSFORM_MXFP8_PENDING_H
#define RESHARD_TRANSFORM_MXFP8_PENDING_H

#include "reshard/transform/mxfp8_box.h"

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
void mxfp8_pending_memory(const mxfp8_pending *pending, const mxfp8_box *box, mxfp8_memory *memory);

/* Mark a box that has arrived: its blocks are to be quantized. */
void mxfp8_pending_mark(mxfp8_pending *pending, const mxfp8_box *box);

/* Quantize every marked block into `elements`, the whole tensor's memory. */
void mxfp8_pending_quantize(const mxfp8_pending *pending, banyan_mxfp8_rule rule,
                            const mxfp8_memory *elements, const mxfp8_scales *scales);

#endif
