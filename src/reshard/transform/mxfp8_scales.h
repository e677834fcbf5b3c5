/* Placement of an MXFP8 tensor's scales: a plain matrix, or tiles for tensor cores. */
#ifndef RESHARD_TRANSFORM_MXFP8_SCALES_H
#define RESHARD_TRANSFORM_MXFP8_SCALES_H

#include "reshard/transform/mxfp8.h"

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

#endif
