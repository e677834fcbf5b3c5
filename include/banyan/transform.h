/* Banyan: the transforms that come with it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef BANYAN_TRANSFORM_H
#define BANYAN_TRANSFORM_H

#include <banyan/reshard.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Free a transform that a function of this header made. No plan and no run may use it any more.
 * NULL is ignored. */
BANYAN_API void banyan_transform_destroy(banyan_transform *transform);

/* Where the format changes. All ranks of a run must say the same. */
typedef enum banyan_transform_side {
    BANYAN_TRANSFORM_SIDE_DEFAULT = 0, /* as each transform documents */
    BANYAN_TRANSFORM_AT_SENDER,
    BANYAN_TRANSFORM_AT_RECEIVER
} banyan_transform_side;

/* ---- MXFP8: e4m3 elements, one e8m0 scale for 32 along the last dimension ---- */

/* How a block's scale follows from its largest magnitude, amax (docs/transforms.md). */
typedef enum banyan_mxfp8_rule {
    BANYAN_MXFP8_ROUND_UP = 0, /* the smallest power of two ≥ amax ÷ 448: nothing saturates */
    BANYAN_MXFP8_OCP           /* 2^(⌊log2 amax⌋ - 8), as the OCP MX specification has it */
} banyan_mxfp8_rule;

/* How a tensor's scales lie in memory. Its last two dimensions are a matrix [rows, cols], those
 * before them count matrices; a tensor of one dimension is one row. */
typedef enum banyan_mxfp8_layout {
    BANYAN_MXFP8_PLAIN = 0, /* the tensor's shape, the last dimension replaced by ⌈cols ÷ 32⌉ */
    /* What tensor cores read: one dimension, a matrix after the other, each as tiles of 128 rows by
     * 4 scales, row-major; scale (r, c) of a tile is byte (r mod 32)·16 + ⌊r ÷ 32⌋·4 + c of its
     * 512. Rows are padded to 128 and columns to 4 with zeros. */
    BANYAN_MXFP8_SWIZZLED
} banyan_mxfp8_layout;

/* The shape of the scales of a tensor of `shape`: bytes (U8 or F8_E8M0). `scales_shape` has room
 * for `ndim` dimensions, one at least. INVALID when a dimension is negative or the product does not
 * fit 63 bits. Any thread. */
BANYAN_API banyan_status banyan_mxfp8_scales_shape(banyan_mxfp8_layout layout, int ndim,
                                                   const int64_t *shape, int *scales_ndim,
                                                   int64_t *scales_shape);

#ifdef __cplusplus
}
#endif
#endif
