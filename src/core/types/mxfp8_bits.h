/* MXFP8 arithmetic on one value, as bits: the scale of a block in e8m0 (2^(byte - 127), 255 is
 * NaN), and an element's e4m3 code under that scale. Kernels use these functions too, and so get
 * identical bits. */
#ifndef CORE_TYPES_MXFP8_BITS_H
#define CORE_TYPES_MXFP8_BITS_H

#include "core/types/float_bits.h"

#define E4M3_EMAX 8 /* exponent of 448 = 1.75 · 2^8 */
#define E8M0_BIAS 127
#define E8M0_NAN 255

/* With a scale in this range, and without NaN, subnormals in the float arithmetic do not affect the
 * result. */
#define SCALE_EASY_MIN (E8M0_BIAS - 110)
#define SCALE_EASY_MAX (E8M0_BIAS + 118)

FLOAT_BITS bool scale_is_easy(uint8_t scale)
{
    return scale >= SCALE_EASY_MIN && scale <= SCALE_EASY_MAX;
}

FLOAT_BITS int leading_zeros(uint32_t value)
{
#ifdef __CUDA_ARCH__
    return __clz((int)value);
#else
    return __builtin_clz(value);
#endif
}

/* A subnormal amax is below 2^-126; both rounding rules then give the smallest scale. */
FLOAT_BITS uint8_t block_scale(bool round_up, uint32_t amax)
{
    if (amax == F32_INFINITY)
        return E8M0_NAN - 1;
    const uint32_t mantissa_of_448 = UINT32_C(3) << 21;
    bool above_448 = (amax & 0x7fffff) > mantissa_of_448;
    int scale = (int)(amax >> 23) - E4M3_EMAX + (round_up && above_448);
    return (uint8_t)(scale < 0 ? 0 : scale);
}

/* Add 2^20 times the value's own power of two, or times the power of e4m3's smallest normal number.
 * The sum keeps as many bits as e4m3 has, and counts units of its last place. */
FLOAT_BITS uint8_t easy_element(uint32_t bits, float factor)
{
    float scaled = f32_of_bits(bits & ~F32_SIGN) * factor;
    uint32_t power = f32_bits(scaled) & F32_INFINITY;
    power = (int32_t)power > (int32_t)F32_POWER(-6) ? power : F32_POWER(-6);
    uint32_t magic = power + (UINT32_C(20) << 23);
    uint32_t places = f32_bits(scaled + f32_of_bits(magic)) - magic;
    int32_t code = (int32_t)(places + ((power - F32_POWER(-6)) >> 20));
    code = code > E4M3_LARGEST ? E4M3_LARGEST : code;
    return (uint8_t)((uint32_t)code | (bits >> 24 & 0x80));
}

/* Return value · 2^-shift, rounded to nearest even; shift > 0. */
FLOAT_BITS uint32_t shift_to_nearest(uint32_t value, int shift)
{
    if (shift > 31)
        return 0;
    uint32_t kept = value >> shift, lost = value & ((UINT32_C(1) << shift) - 1);
    uint32_t half = UINT32_C(1) << (shift - 1);
    return kept + (lost > half || (lost == half && (kept & 1)));
}

/* Convert any value under any scale, with integer arithmetic only. */
FLOAT_BITS uint8_t any_element(uint32_t bits, uint8_t scale)
{
    uint32_t magnitude = bits & ~F32_SIGN, sign = bits >> 24 & 0x80;
    if (magnitude > F32_INFINITY)
        return (uint8_t)(sign | E4M3_NAN);
    if (magnitude == F32_INFINITY)
        return (uint8_t)(sign | E4M3_LARGEST);
    int exponent = (int)(magnitude >> 23);
    uint32_t significand = magnitude & 0x7fffff;
    if (exponent > 0)
        significand |= 0x800000;
    else
        exponent = 1;
    if (significand == 0)
        return (uint8_t)sign;
    /* The scaled value is significand · 2^unit. */
    int unit = exponent - 150 - ((int)scale - E8M0_BIAS);
    int top = 31 - leading_zeros(significand) + unit;
    int place = top < -6 ? -9 : top - 3;
    uint32_t kept =
        place > unit ? shift_to_nearest(significand, place - unit) : significand << (unit - place);
    uint32_t result = top < -6 ? kept : (uint32_t)(top + 6) * 8 + kept;
    return (uint8_t)(sign | (result > E4M3_LARGEST ? E4M3_LARGEST : result));
}

#endif
