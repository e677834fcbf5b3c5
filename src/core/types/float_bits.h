/* Convert one element between f32 and the smaller floats, as bits. Values are rounded to nearest
 * even. A NaN keeps its sign and the top of its payload, and becomes quiet. No branches, so that
 * loops over these vectorize; no float arithmetic on f32 subnormals, which a process may have set
 * to flush to zero. */
#ifndef CORE_TYPES_FLOAT_BITS_H
#define CORE_TYPES_FLOAT_BITS_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* Kernels use these functions too, and so get identical bits. */
#ifdef __CUDACC__
#define FLOAT_BITS static __host__ __device__ inline
#else
#define FLOAT_BITS static inline
#endif

#define F32_SIGN UINT32_C(0x80000000)
#define F32_INFINITY UINT32_C(0x7f800000)
#define F32_QUIET UINT32_C(0x00400000)
/* The bits of 2^exponent, for exponents of normal numbers. */
#define F32_POWER(exponent) ((uint32_t)(127 + (exponent)) << 23)

FLOAT_BITS float f32_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

FLOAT_BITS uint32_t f32_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

FLOAT_BITS uint32_t bits_select(bool condition, uint32_t yes, uint32_t no)
{
    uint32_t mask = 0 - (uint32_t)condition;
    return (yes & mask) | (no & ~mask);
}

FLOAT_BITS bool f32_is_nan(uint32_t bits)
{
    return (bits & ~F32_SIGN) > F32_INFINITY;
}

FLOAT_BITS uint32_t f32_quieted(uint32_t bits)
{
    return bits | bits_select(f32_is_nan(bits), F32_QUIET, 0);
}

FLOAT_BITS uint32_t f32_of_bf16(uint16_t half)
{
    return f32_quieted((uint32_t)half << 16);
}

FLOAT_BITS uint16_t bf16_of_f32(uint32_t bits)
{
    uint32_t rounded = bits + 0x7fff + (bits >> 16 & 1);
    return (uint16_t)(bits_select(f32_is_nan(bits), bits | F32_QUIET, rounded) >> 16);
}

/* Integer addition adjusts the exponent. A subnormal has no leading one; it gets one, and an exact
 * subtraction removes it again. */
FLOAT_BITS uint32_t f32_of_f16(uint16_t half)
{
    const uint32_t rebias = F32_POWER(0) - F32_POWER(-112);
    uint32_t magnitude = (uint32_t)(half & 0x7fff) << 13;
    uint32_t subnormal =
        f32_bits(f32_of_bits(magnitude + F32_POWER(-14)) - f32_of_bits(F32_POWER(-14)));
    uint32_t special = f32_quieted(magnitude + 2 * rebias);
    uint32_t bits = bits_select(magnitude < UINT32_C(1) << 23, subnormal, magnitude + rebias);
    bits = bits_select(magnitude >= UINT32_C(31) << 23, special, bits);
    return bits | (uint32_t)(half & 0x8000) << 16;
}

/* The float unit rounds results in f16's subnormal range: after adding a half, the last bit of the
 * sum has the weight of f16's last place. */
FLOAT_BITS uint16_t f16_of_f32(uint32_t bits)
{
    const uint32_t rebias = F32_POWER(0) - F32_POWER(-112);
    uint32_t magnitude = bits & ~F32_SIGN;
    uint32_t normal = (magnitude - rebias + 0xfff + (magnitude >> 13 & 1)) >> 13;
    uint32_t subnormal =
        f32_bits(f32_of_bits(magnitude) + f32_of_bits(F32_POWER(-1))) - F32_POWER(-1);
    uint32_t nan = 0x7e00 | (magnitude >> 13 & 0x3ff);
    uint32_t result = bits_select(magnitude < F32_POWER(-14), subnormal, normal);
    result = bits_select(magnitude >= F32_POWER(16), 0x7c00, result);
    result = bits_select(magnitude > F32_INFINITY, nan, result);
    return (uint16_t)(result | (bits >> 16 & 0x8000));
}

/* e5m2 is the upper half of an f16. */
FLOAT_BITS uint32_t f32_of_e5m2(uint8_t byte)
{
    return f32_of_f16((uint16_t)(byte << 8));
}

/* A value that is too large becomes infinity. */
FLOAT_BITS uint8_t e5m2_of_f32(uint32_t bits)
{
    const uint32_t rebias = F32_POWER(0) - F32_POWER(-112);
    uint32_t magnitude = bits & ~F32_SIGN;
    uint32_t normal = (magnitude - rebias + 0xfffff + (magnitude >> 21 & 1)) >> 21;
    uint32_t subnormal =
        f32_bits(f32_of_bits(magnitude) + f32_of_bits(F32_POWER(7))) - F32_POWER(7);
    uint32_t nan = 0x7e | (magnitude >> 21 & 3);
    uint32_t result = bits_select(magnitude < F32_POWER(-14), subnormal, normal);
    result = bits_select(magnitude >= F32_POWER(16), 0x7c, result);
    result = bits_select(magnitude > F32_INFINITY, nan, result);
    return (uint8_t)(result | (bits >> 24 & 0x80));
}

/* e4m3 has no infinity (it is DLPack's e4m3fn): a value that is too large becomes the largest
 * value, with its sign. */
#define E4M3_LARGEST 0x7e /* 448 */
#define E4M3_NAN 0x7f

FLOAT_BITS uint32_t f32_of_finite_e4m3(uint8_t byte)
{
    uint32_t magnitude = (uint32_t)(byte & 0x7f) << 20;
    uint32_t normal = magnitude + F32_POWER(0) - F32_POWER(-120);
    uint32_t subnormal =
        f32_bits(f32_of_bits(magnitude + F32_POWER(-6)) - f32_of_bits(F32_POWER(-6)));
    uint32_t bits = bits_select(magnitude < UINT32_C(8) << 20, subnormal, normal);
    return bits | (uint32_t)(byte & 0x80) << 24;
}

FLOAT_BITS uint32_t f32_of_e4m3(uint8_t byte)
{
    uint32_t nan = bits_select((byte & 0x7f) == E4M3_NAN, F32_INFINITY | F32_QUIET, 0);
    return f32_of_finite_e4m3(byte) | nan;
}

FLOAT_BITS uint8_t e4m3_of_f32(uint32_t bits)
{
    const uint32_t rebias = F32_POWER(0) - F32_POWER(-120);
    uint32_t magnitude = bits & ~F32_SIGN;
    uint32_t normal = (magnitude - rebias + 0x7ffff + (magnitude >> 20 & 1)) >> 20;
    uint32_t subnormal =
        f32_bits(f32_of_bits(magnitude) + f32_of_bits(F32_POWER(14))) - F32_POWER(14);
    uint32_t result = bits_select(magnitude < F32_POWER(-6), subnormal, normal);
    result = bits_select(magnitude >= F32_POWER(9), E4M3_LARGEST, result);
    result = bits_select(result > E4M3_LARGEST, E4M3_LARGEST, result);
    result = bits_select(magnitude > F32_INFINITY, E4M3_NAN, result);
    return (uint8_t)(result | (bits >> 24 & 0x80));
}

#endif
