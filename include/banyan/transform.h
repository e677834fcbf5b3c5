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

/* Where the format changes. All ranks of a run must say the same, as of all options below. */
typedef enum banyan_transform_side {
    BANYAN_TRANSFORM_SIDE_DEFAULT = 0, /* as each transform documents */
    BANYAN_TRANSFORM_AT_SENDER,
    BANYAN_TRANSFORM_AT_RECEIVER
} banyan_transform_side;

/* ---- casts between F32, F16 and BF16 ---- */

typedef struct banyan_cast_options {
    size_t size;                /* of this struct; BANYAN_CAST_OPTIONS_INIT sets it */
    banyan_transform_side side; /* default: the one that puts fewer bytes on the wire */
    const char *const *names;   /* globs; only global tensors whose name matches one are cast */
    size_t name_count;          /* 0: all */
} banyan_cast_options;

#define BANYAN_CAST_OPTIONS_INIT BANYAN_INIT(banyan_cast_options)

/* A transform that casts each tensor whose two types differ and are of the three: to nearest even,
 * infinities kept, NaN made quiet. `options` NULL: the defaults; they are copied. Local. */
BANYAN_API banyan_status banyan_cast_create(const banyan_cast_options *options,
                                            banyan_transform **transform);

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

typedef struct banyan_mxfp8_options {
    size_t size; /* of this struct; BANYAN_MXFP8_OPTIONS_INIT sets it */
    /* The default, at the receiver for quantizing and at the sender for reading back, takes slices
     * of any kind. The other halves the bytes on the wire, and needs slices of whole blocks. */
    banyan_transform_side side;
    banyan_mxfp8_rule rule;
    banyan_mxfp8_layout layout; /* of the scales that are bound */
    const char *const *names;   /* globs; only global tensors whose name matches one */
    size_t name_count;          /* 0: all */
    /* NULL, or which of these: called at both ends, which must get the same answer. */
    bool (*accepts)(void *accepts_context, const banyan_transfer *transfer);
    void *accepts_context;
} banyan_mxfp8_options;

#define BANYAN_MXFP8_OPTIONS_INIT BANYAN_INIT(banyan_mxfp8_options)

/* A transform that quantizes tensors on their way from a source in F32, F16 or BF16 to a
 * destination in F8_E4M3, and reads them back from F8_E4M3 into one of the three.
 *
 * Blocks run along the last dimension of the local tensor that is in F8_E4M3, the one that tensor
 * cores read, from its start. A slice whose box starts and ends there on multiples of 32, or ends
 * with the tensor, has whole blocks and is converted as it lands. A tensor of which another slice
 * cuts a block is accumulated in the source's type, in memory of the transform's, and quantized
 * when the run has brought all of it. Where whole blocks are needed a cut one is INVALID: the
 * sentence names tensor, box and block.
 *
 * `options` NULL: the defaults; they are copied. Local. */
BANYAN_API banyan_status banyan_mxfp8_create(const banyan_mxfp8_options *options,
                                             banyan_transform **transform);

/* Where the scales of this rank's local tensor `name`, in F8_E4M3, lie: written for a destination,
 * all of them in every run, read for a source. Shape (see banyan_mxfp8_scales_shape) and strides
 * are copied, the data must stay as long as the transform is used. A second call for a name
 * replaces the first; `scales` NULL forgets it. INVALID for a transform that banyan_mxfp8_create
 * did not make; whether the shape fits is checked in a run, before anything moves. Local. */
BANYAN_API banyan_status banyan_mxfp8_bind_scales(banyan_transform *transform, const char *name,
                                                  const DLTensor *scales);

#ifdef __cplusplus
}
#endif
#endif
