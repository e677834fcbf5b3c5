/* Banyan: built-in transforms, which change the element format of tensors during a reshard.
 *
 * A transform takes part in banyan_reshard_execute (reshard.h). All ranks of a run use the same
 * transform with the same options. docs/transforms.md describes the formats. To write your own
 * transform, see banyan_transform in reshard.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef BANYAN_TRANSFORM_H
#define BANYAN_TRANSFORM_H

#include <banyan/reshard.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Destroy a transform that a function of this header created. No plan or run may use it any more.
 * NULL is ignored. Local. */
BANYAN_API void banyan_transform_destroy(banyan_transform *transform);

/* Rank that converts the elements. */
typedef enum banyan_transform_side {
    BANYAN_TRANSFORM_SIDE_DEFAULT = 0, /* the transform's choice, see its options */
    BANYAN_TRANSFORM_AT_SENDER,
    BANYAN_TRANSFORM_AT_RECEIVER
} banyan_transform_side;

/* ---- casts between F32, F16 and BF16 ---- */

/* Options of banyan_cast_create. */
typedef struct banyan_cast_options {
    size_t size;                /* of this struct; BANYAN_CAST_OPTIONS_INIT sets it */
    banyan_transform_side side; /* default: where fewer bytes travel; not used on GPUs */
    const char *const *names;   /* globs; cast only global tensors with a matching name */
    size_t name_count;          /* 0: all tensors */
} banyan_cast_options;

#define BANYAN_CAST_OPTIONS_INIT BANYAN_INIT(banyan_cast_options)

/* Create a transform that casts every tensor whose source and destination have different types
 * among F32, F16 and BF16. Values are rounded to nearest even; infinities stay, and a NaN becomes
 * quiet. `options` NULL means the defaults; the names are copied. Local. Errors: NO_MEMORY. */
BANYAN_API banyan_status banyan_cast_create(const banyan_cast_options *options,
                                            banyan_transform **transform);

/* ---- MXFP8: e4m3 elements with one e8m0 scale for each 32 along the last dimension ---- */

/* The format is that of the OCP Microscaling (MX) specification 1.0. */

/* Rule that computes the scale of a block from amax, its largest magnitude. */
typedef enum banyan_mxfp8_rule {
    BANYAN_MXFP8_ROUND_UP = 0, /* the smallest power of two ≥ amax ÷ 448: nothing saturates */
    BANYAN_MXFP8_OCP           /* 2^(⌊log2 amax⌋ - 8), as in the OCP MX specification */
} banyan_mxfp8_rule;

/* Order of a tensor's scales in memory. The last two dimensions of the tensor form a matrix [rows,
 * cols]; the dimensions before them count matrices. A tensor of one dimension is one row. */
typedef enum banyan_mxfp8_layout {
    BANYAN_MXFP8_PLAIN = 0, /* the tensor's shape, with ⌈cols ÷ 32⌉ as the last dimension */
    /* The order that tensor cores read (cuBLAS, cuDNN). One dimension, one matrix after another,
     * each as row-major tiles of 128 rows by 4 scales. Scale (r, c) of a tile is byte (r mod 32)·16
     * + ⌊r ÷ 32⌋·4 + c of its 512 bytes. Rows are padded to a multiple of 128, and columns to a
     * multiple of 4, with zeros. */
    BANYAN_MXFP8_SWIZZLED
} banyan_mxfp8_layout;

/* Compute the shape of the scales of a tensor of `shape`. The scales are bytes (U8 or F8_E8M0).
 * `scales_shape` must have space for `ndim` dimensions, and for at least one. Errors: INVALID (a
 * dimension is negative, or the product exceeds 63 bits). Any thread. */
BANYAN_API banyan_status banyan_mxfp8_scales_shape(banyan_mxfp8_layout layout, int ndim,
                                                   const int64_t *shape, int *scales_ndim,
                                                   int64_t *scales_shape);

/* Options of banyan_mxfp8_create. */
typedef struct banyan_mxfp8_options {
    size_t size; /* of this struct; BANYAN_MXFP8_OPTIONS_INIT sets it */
    /* Default: quantize at the receiver, and dequantize at the sender. This accepts slices of any
     * kind. Slices of whole blocks that go to another node are quantized at the sender, which
     * halves their bytes. The other side does so everywhere, and requires slices of whole blocks.
     * Not used on GPUs.
     */
    banyan_transform_side side;
    banyan_mxfp8_rule rule;     /* for the scales */
    banyan_mxfp8_layout layout; /* of the scales given to banyan_mxfp8_bind_scales */
    const char *const *names;   /* globs; convert only global tensors with a matching name */
    size_t name_count;          /* 0: all tensors */
    /* NULL, or: return true for the transfers to convert, among those that `names` selects. Sender
     * and receiver both call it and must obtain the same answer. */
    bool (*accepts)(void *accepts_context, const banyan_transfer *transfer);
    void *accepts_context; /* passed to `accepts` */
} banyan_mxfp8_options;

#define BANYAN_MXFP8_OPTIONS_INIT BANYAN_INIT(banyan_mxfp8_options)

/* Create a transform that quantizes tensors from a source in F32, F16 or BF16 to a destination in
 * F8_E4M3, and dequantizes them from F8_E4M3 to one of these types.
 *
 * Blocks run along the last dimension of the local tensor that is in F8_E4M3, from its start. A
 * slice has whole blocks if its box starts on a multiple of 32 there, and ends on one or at the end
 * of the tensor. Such a slice is converted as it arrives. If another slice cuts a block of a
 * tensor, the transform collects the whole tensor in its own memory, in the source's type. It
 * quantizes the tensor when the run has received all slices. Where whole blocks are required, a cut
 * block makes the run INVALID; the message names tensor, box and block.
 *
 * `options` NULL means the defaults; the names are copied. Local. Errors: NO_MEMORY. */
BANYAN_API banyan_status banyan_mxfp8_create(const banyan_mxfp8_options *options,
                                             banyan_transform **transform);

/* Set the memory for the scales of this rank's local tensor `name`, which is in F8_E4M3. A run
 * writes all scales of a destination, and reads those of a source. Shape
 * (banyan_mxfp8_scales_shape) and strides are copied; the data must stay as long as the transform
 * is used. A second call for a name replaces the first; `scales` NULL removes it. Local. Errors:
 * INVALID (banyan_mxfp8_create did not create the transform), NO_MEMORY. A run checks the shape
 * before anything moves, and fails with NOT_FOUND if a tensor in F8_E4M3 has no scales. */
BANYAN_API banyan_status banyan_mxfp8_bind_scales(banyan_transform *transform, const char *name,
                                                  const DLTensor *scales);

#ifdef __cplusplus
}
#endif
#endif
