#include "reshard/transform/mxfp8.h"

#include <string.h>

#include "core/threads/cpu.h"
#include "core/types/float_bits.h"
#include "core/types/mxfp8_bits.h"
#include "reshard/run/convert.h"

#define BLOCK MXFP8_BLOCK

/* Process blocks as 32 f32 values, which hold any source exactly. Nearly all blocks are easy:
 * without NaN, and with a scale for which float arithmetic has no subnormal that counts. The
 * others take a slower path, in integers. */
/* Return the largest magnitude as f32 bits, which order like the values, with NaN above all. */
static inline __attribute__((always_inline)) uint32_t block_amax(const uint32_t *restrict values)
{
    int32_t amax = 0;
    for (int i = 0; i < BLOCK; i++) {
        int32_t magnitude = (int32_t)(values[i] & ~F32_SIGN);
        amax = magnitude > amax ? magnitude : amax;
    }
    return (uint32_t)amax;
}

static uint32_t block_amax_without_nan(const uint32_t *values)
{
    uint32_t amax = 0;
    for (int i = 0; i < BLOCK; i++) {
        uint32_t magnitude = values[i] & ~F32_SIGN;
        if (magnitude > amax && magnitude <= F32_INFINITY)
            amax = magnitude;
    }
    return amax;
}

static inline __attribute__((always_inline)) void
easy_elements(const uint32_t *restrict values, uint8_t scale, uint8_t *restrict elements)
{
    float factor = f32_of_bits(F32_POWER(E8M0_BIAS - scale));
    for (int i = 0; i < BLOCK; i++)
        elements[i] = easy_element(values[i], factor);
}

static inline __attribute__((always_inline)) void
easy_values(const uint8_t *restrict elements, uint8_t scale, uint32_t *restrict values)
{
    float factor = f32_of_bits(F32_POWER(scale - E8M0_BIAS));
    for (int i = 0; i < BLOCK; i++)
        values[i] = f32_bits(f32_of_bits(f32_of_finite_e4m3(elements[i])) * factor);
}

static inline __attribute__((always_inline)) bool block_has_nan(const uint8_t *restrict elements)
{
    uint8_t largest = 0;
    for (int i = 0; i < BLOCK; i++) {
        uint8_t magnitude = elements[i] & 0x7f;
        largest = magnitude > largest ? magnitude : largest;
    }
    return largest == E4M3_NAN;
}

static uint32_t any_value(uint8_t element, uint8_t scale)
{
    uint32_t sign = (uint32_t)(element & 0x80) << 24, exponent = element >> 3 & 15;
    if (scale == E8M0_NAN || (element & 0x7f) == E4M3_NAN)
        return sign | F32_INFINITY | F32_QUIET;
    uint32_t significand = (element & 7) | (exponent > 0 ? 8 : 0);
    if (significand == 0)
        return sign;
    int unit = (int)(exponent > 0 ? exponent : 1) - 10 + (int)scale - E8M0_BIAS;
    int top = 31 - __builtin_clz(significand);
    if (top + unit > 127)
        return sign | F32_INFINITY;
    if (top + unit < -126)
        return sign | significand << (unit + 149);
    return sign | (F32_POWER(top + unit) + (significand << (23 - top)) - 0x800000);
}

/* Bf16, in 16-bit integers. */

/* Fast paths for bf16: nearly all blocks of weights hold nothing that is subnormal in e4m3, except
 * zeros. Then a bf16 value becomes an element, or back, by shifting its exponent and rounding its
 * mantissa. For other blocks these functions return false, and their output is undefined. */
typedef uint16_t half_at __attribute__((aligned(1), may_alias));

#define BF16_INFINITY 0x7f80
#define BF16_POWER(exponent) ((uint16_t)((127 + (exponent)) << 7))

static inline __attribute__((always_inline)) bool
quantize_bf16_block(banyan_mxfp8_rule rule, const half_at *restrict values,
                    uint8_t *restrict elements, uint8_t *restrict scale)
{
    uint16_t amax = 0, special = 0;
    for (int i = 0; i < BLOCK; i++) {
        uint16_t magnitude = values[i] & 0x7fff;
        amax = magnitude > amax ? magnitude : amax;
    }
    *scale = block_scale(rule == BANYAN_MXFP8_ROUND_UP, (uint32_t)amax << 16);
    if (amax >= BF16_INFINITY || !scale_is_easy(*scale))
        return false;
    uint16_t up = (uint16_t)(*scale < E8M0_BIAS ? (E8M0_BIAS - *scale) << 7 : 0);
    uint16_t down = (uint16_t)(*scale > E8M0_BIAS ? (*scale - E8M0_BIAS) << 7 : 0);
    for (int i = 0; i < BLOCK; i++) {
        uint16_t magnitude = values[i] & 0x7fff;
        uint16_t scaled = (uint16_t)(magnitude + up);
        scaled = scaled > down ? (uint16_t)(scaled - down) : 0;
        uint16_t rounded = (uint16_t)((uint16_t)(scaled + 7 + (scaled >> 4 & 1)) >> 4);
        uint16_t code = (uint16_t)(rounded - (BF16_POWER(-7) >> 4));
        code = code > E4M3_LARGEST ? E4M3_LARGEST : code;
        uint16_t nonzero = magnitude > 0 ? 0xffff : 0;
        special |= nonzero & (scaled < BF16_POWER(-6) ? 0xffff : 0);
        elements[i] = (uint8_t)((code & nonzero) | (values[i] >> 8 & 0x80));
    }
    return special == 0;
}

static inline __attribute__((always_inline)) bool
dequantize_bf16_block(const uint8_t *restrict elements, uint8_t scale, half_at *restrict values)
{
    uint16_t special = 0;
    if (!scale_is_easy(scale))
        return false;
    uint16_t rebias = BF16_POWER(scale - E8M0_BIAS - 7);
    for (int i = 0; i < BLOCK; i++) {
        uint16_t element = elements[i], magnitude = element & 0x7f;
        uint16_t nonzero = magnitude > 0 ? 0xffff : 0;
        special |= nonzero & (magnitude < 8 || magnitude == E4M3_NAN ? 0xffff : 0);
        values[i] = (uint16_t)((((magnitude << 4) + rebias) & nonzero) | (element & 0x80) << 8);
    }
    return special == 0;
}

static inline __attribute__((always_inline)) void quantize_blocks(banyan_mxfp8_rule rule,
                                                                  const uint32_t *values,
                                                                  int64_t blocks, uint8_t *elements,
                                                                  uint8_t *scales)
{
    for (int64_t b = 0; b < blocks; b++, values += BLOCK, elements += BLOCK) {
        uint32_t amax = block_amax(values);
        bool has_nan = amax > F32_INFINITY;
        scales[b] = block_scale(rule == BANYAN_MXFP8_ROUND_UP,
                                has_nan ? block_amax_without_nan(values) : amax);
        if (!has_nan && scale_is_easy(scales[b]))
            easy_elements(values, scales[b], elements);
        else
            for (int i = 0; i < BLOCK; i++)
                elements[i] = any_element(values[i], scales[b]);
    }
}

static inline __attribute__((always_inline)) void
dequantize_blocks(const uint8_t *elements, const uint8_t *scales, int64_t blocks, uint32_t *values)
{
    for (int64_t b = 0; b < blocks; b++, values += BLOCK, elements += BLOCK) {
        if (scale_is_easy(scales[b]) && !block_has_nan(elements))
            easy_values(elements, scales[b], values);
        else
            for (int i = 0; i < BLOCK; i++)
                values[i] = any_value(elements[i], scales[b]);
    }
}

static inline __attribute__((always_inline)) void
quantize_bf16_blocks(banyan_mxfp8_rule rule, const half_at *values, int64_t blocks,
                     uint8_t *elements, uint8_t *scales)
{
    for (int64_t b = 0; b < blocks; b++, values += BLOCK, elements += BLOCK) {
        if (quantize_bf16_block(rule, values, elements, &scales[b]))
            continue;
        uint32_t wide[BLOCK];
        for (int i = 0; i < BLOCK; i++)
            wide[i] = (uint32_t)values[i] << 16;
        quantize_blocks(rule, wide, 1, elements, &scales[b]);
    }
}

static inline __attribute__((always_inline)) void dequantize_bf16_blocks(const uint8_t *elements,
                                                                         const uint8_t *scales,
                                                                         int64_t blocks,
                                                                         half_at *values)
{
    for (int64_t b = 0; b < blocks; b++, values += BLOCK, elements += BLOCK) {
        if (dequantize_bf16_block(elements, scales[b], values))
            continue;
        uint32_t wide[BLOCK];
        dequantize_blocks(elements, &scales[b], 1, wide);
        for (int i = 0; i < BLOCK; i++)
            values[i] = bf16_of_f32(wide[i]);
    }
}

struct kernels {
    void (*quantize)(banyan_mxfp8_rule rule, const uint32_t *values, int64_t blocks,
                     uint8_t *elements, uint8_t *scales);
    void (*dequantize)(const uint8_t *elements, const uint8_t *scales, int64_t blocks,
                       uint32_t *values);
    void (*quantize_bf16)(banyan_mxfp8_rule rule, const half_at *values, int64_t blocks,
                          uint8_t *elements, uint8_t *scales);
    void (*dequantize_bf16)(const uint8_t *elements, const uint8_t *scales, int64_t blocks,
                            half_at *values);
};

#define DEFINE_KERNELS(processor, attributes)                                                      \
    attributes static void processor##_quantize(banyan_mxfp8_rule rule, const uint32_t *values,    \
                                                int64_t blocks, uint8_t *elements,                 \
                                                uint8_t *scales)                                   \
    {                                                                                              \
        quantize_blocks(rule, values, blocks, elements, scales);                                   \
    }                                                                                              \
    attributes static void processor##_dequantize(const uint8_t *elements, const uint8_t *scales,  \
                                                  int64_t blocks, uint32_t *values)                \
    {                                                                                              \
        dequantize_blocks(elements, scales, blocks, values);                                       \
    }                                                                                              \
    attributes static void processor##_quantize_bf16(banyan_mxfp8_rule rule,                       \
                                                     const half_at *values, int64_t blocks,        \
                                                     uint8_t *elements, uint8_t *scales)           \
    {                                                                                              \
        quantize_bf16_blocks(rule, values, blocks, elements, scales);                              \
    }                                                                                              \
    attributes static void processor##_dequantize_bf16(                                            \
        const uint8_t *elements, const uint8_t *scales, int64_t blocks, half_at *values)           \
    {                                                                                              \
        dequantize_bf16_blocks(elements, scales, blocks, values);                                  \
    }                                                                                              \
    static const struct kernels processor##_kernels = {                                            \
        processor##_quantize, processor##_dequantize, processor##_quantize_bf16,                   \
        processor##_dequantize_bf16}

DEFINE_KERNELS(portable, );

#if defined(__x86_64__)
DEFINE_KERNELS(avx2, __attribute__((target("avx2"))));
#endif

static const struct kernels *kernels_of_this_cpu(void)
{
#if defined(__x86_64__)
    if (cpu_level_get() >= CPU_AVX2)
        return &avx2_kernels;
#endif
    return &portable_kernels;
}

/* Blocks that one pass takes through a buffer of f32. */
#define CHUNK_BLOCKS 32

static void quantize_with(const struct kernels *kernels, banyan_mxfp8_rule rule, const void *from,
                          DLDataType dtype, int64_t count, uint8_t *elements, uint8_t *scales)
{
    uint32_t values[CHUNK_BLOCKS * BLOCK];
    int64_t whole = count / BLOCK, rest = count % BLOCK, done = 0;
    const char *in = from;
    if (banyan_dtype_equal(dtype, BANYAN_BF16)) {
        kernels->quantize_bf16(rule, from, whole, elements, scales);
        done = whole;
    }
    for (int64_t some; done < whole; done += some) {
        some = whole - done < CHUNK_BLOCKS ? whole - done : CHUNK_BLOCKS;
        convert_run(values, BANYAN_F32, in + done * BLOCK * (int64_t)banyan_dtype_bytes(dtype),
                    dtype, (size_t)(some * BLOCK));
        kernels->quantize(rule, values, some, elements + done * BLOCK, scales + done);
    }
    if (rest > 0) {
        uint8_t block[BLOCK];
        memset(values, 0, BLOCK * sizeof values[0]);
        convert_run(values, BANYAN_F32, in + whole * BLOCK * (int64_t)banyan_dtype_bytes(dtype),
                    dtype, (size_t)rest);
        kernels->quantize(rule, values, 1, block, scales + whole);
        memcpy(elements + whole * BLOCK, block, (size_t)rest);
    }
}

static void dequantize_with(const struct kernels *kernels, const uint8_t *elements,
                            const uint8_t *scales, int64_t count, void *to, DLDataType dtype)
{
    uint32_t values[CHUNK_BLOCKS * BLOCK];
    int64_t whole = count / BLOCK, rest = count % BLOCK, done = 0;
    char *out = to;
    if (banyan_dtype_equal(dtype, BANYAN_BF16)) {
        kernels->dequantize_bf16(elements, scales, whole, to);
        done = whole;
    }
    for (int64_t some; done < whole; done += some) {
        some = whole - done < CHUNK_BLOCKS ? whole - done : CHUNK_BLOCKS;
        kernels->dequantize(elements + done * BLOCK, scales + done, some, values);
        convert_run(out + done * BLOCK * (int64_t)banyan_dtype_bytes(dtype), dtype, values,
                    BANYAN_F32, (size_t)(some * BLOCK));
    }
    if (rest > 0) {
        uint8_t block[BLOCK] = {0};
        memcpy(block, elements + whole * BLOCK, (size_t)rest);
        kernels->dequantize(block, scales + whole, 1, values);
        convert_run(out + whole * BLOCK * (int64_t)banyan_dtype_bytes(dtype), dtype, values,
                    BANYAN_F32, (size_t)rest);
    }
}

void mxfp8_quantize(banyan_mxfp8_rule rule, const void *from, DLDataType dtype, int64_t count,
                    uint8_t *elements, uint8_t *scales)
{
    quantize_with(kernels_of_this_cpu(), rule, from, dtype, count, elements, scales);
}

void mxfp8_dequantize(const uint8_t *elements, const uint8_t *scales, int64_t count, void *to,
                      DLDataType dtype)
{
    dequantize_with(kernels_of_this_cpu(), elements, scales, count, to, dtype);
}

void mxfp8_quantize_portable(banyan_mxfp8_rule rule, const void *from, DLDataType dtype,
                             int64_t count, uint8_t *elements, uint8_t *scales)
{
    quantize_with(&portable_kernels, rule, from, dtype, count, elements, scales);
}

void mxfp8_dequantize_portable(const uint8_t *elements, const uint8_t *scales, int64_t count,
                               void *to, DLDataType dtype)
{
    dequantize_with(&portable_kernels, elements, scales, count, to, dtype);
}
