/* MXFP8, block by block: 32 elements in e4m3 (sign, 4 bits of exponent, 3 of mantissa, largest 448)
 * that share a scale in e8m0 (2^(byte - 127), 255 is NaN). docs/transforms.md describes how every
 * value is converted. */
#ifndef RESHARD_TRANSFORM_MXFP8_H
#define RESHARD_TRANSFORM_MXFP8_H

#include <banyan/transform.h>

#define MXFP8_BLOCK 32

static inline int64_t mxfp8_blocks(int64_t elems)
{
    return elems / MXFP8_BLOCK + (elems % MXFP8_BLOCK != 0);
}

/* True if a part of a box consists of whole blocks, which count from the box's start along its last
 * dimension. The last block of the box may be shorter. */
static inline bool mxfp8_keeps_blocks(const banyan_box *box, const banyan_box *part)
{
    int last = box->ndim - 1;
    int64_t start = part->start[last] - box->start[last], end = start + part->extent[last];
    return start % MXFP8_BLOCK == 0 && (end % MXFP8_BLOCK == 0 || end == box->extent[last]);
}

/* Quantize `count` elements (f32, f16 or bf16) that start at a block's start: `count` bytes of
 * elements, and a scale for each block, the last one being shorter when 32 does not divide. Any
 * alignment. */
void mxfp8_quantize(banyan_mxfp8_rule rule, const void *from, DLDataType dtype, int64_t count,
                    uint8_t *elements, uint8_t *scales);

/* Dequantize, exactly where `dtype` (f32, f16 or bf16) can hold the value, otherwise to nearest
 * even. */
void mxfp8_dequantize(const uint8_t *elements, const uint8_t *scales, int64_t count, void *to,
                      DLDataType dtype);

/* Quantize and dequantize without instructions that only some processors have; results are equal.
 */
void mxfp8_quantize_portable(banyan_mxfp8_rule rule, const void *from, DLDataType dtype,
                             int64_t count, uint8_t *elements, uint8_t *scales);
void mxfp8_dequantize_portable(const uint8_t *elements, const uint8_t *scales, int64_t count,
                               void *to, DLDataType dtype);

#endif
