/* Reference implementation of small floating types in double arithmetic: slow, and independent of
 * the code under test. */
#ifndef TESTS_SUPPORT_FLOAT_REFERENCE_H
#define TESTS_SUPPORT_FLOAT_REFERENCE_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>

typedef struct float_format {
    int exponent_bits, mantissa_bits;
} float_format;

static const float_format format_f32 = {8, 23}, format_f16 = {5, 10}, format_bf16 = {8, 7},
                          format_e5m2 = {5, 2};

static inline double format_decode(float_format format, uint32_t bits)
{
    int bias = (1 << (format.exponent_bits - 1)) - 1, top = (1 << format.exponent_bits) - 1;
    int exponent = (int)(bits >> format.mantissa_bits) & top;
    double fraction =
        ldexp((double)(bits & ((1U << format.mantissa_bits) - 1)), -format.mantissa_bits);
    double sign = bits >> (format.exponent_bits + format.mantissa_bits) & 1 ? -1 : 1;
    if (exponent == top)
        return sign * (fraction != 0 ? (double)NAN : (double)INFINITY);
    return sign *
           (exponent == 0 ? ldexp(fraction, 1 - bias) : ldexp(1 + fraction, exponent - bias));
}

/* Round to nearest, ties to even; beyond the largest value infinity. `value` is not NaN. */
static inline uint32_t format_encode(float_format format, double value)
{
    int bias = (1 << (format.exponent_bits - 1)) - 1, top = (1 << format.exponent_bits) - 1;
    uint32_t sign = (uint32_t)(signbit(value) != 0)
                    << (format.exponent_bits + format.mantissa_bits);
    uint32_t infinity = (uint32_t)top << format.mantissa_bits;
    double magnitude = fabs(value);
    if (isinf(magnitude))
        return sign | infinity;
    if (magnitude == 0)
        return sign;
    int exponent = ilogb(magnitude);
    if (exponent < 1 - bias)
        exponent = 1 - bias;
    double units = nearbyint(ldexp(magnitude, format.mantissa_bits - exponent));
    if (units == ldexp(1, format.mantissa_bits + 1)) {
        units /= 2;
        exponent++;
    }
    if (exponent > bias)
        return sign | infinity;
    uint32_t mantissa = (uint32_t)units;
    if (mantissa < 1U << format.mantissa_bits)
        return sign | mantissa;
    uint32_t biased = (uint32_t)(exponent + bias) << format.mantissa_bits;
    return sign | biased | (mantissa & ((1U << format.mantissa_bits) - 1));
}

/* A NaN's sign and the top of its payload, quiet. */
static inline uint32_t format_cast_nan(float_format to, float_format from, uint32_t bits)
{
    uint32_t sign = bits >> (from.exponent_bits + from.mantissa_bits) & 1;
    uint32_t payload = bits & ((1U << from.mantissa_bits) - 1);
    int shift = to.mantissa_bits - from.mantissa_bits;
    payload = shift > 0 ? payload << shift : payload >> -shift;
    uint32_t exponent = (1U << to.exponent_bits) - 1;
    return sign << (to.exponent_bits + to.mantissa_bits) | exponent << to.mantissa_bits |
           1U << (to.mantissa_bits - 1) | payload;
}

static inline uint32_t format_cast(float_format to, float_format from, uint32_t bits)
{
    double value = format_decode(from, bits);
    return isnan(value) ? format_cast_nan(to, from, bits) : format_encode(to, value);
}

/* e4m3 has numbers in place of infinities: one NaN, and a largest value, 448, to which larger ones
 * are clamped. */
static inline double e4m3_decode(uint8_t code)
{
    int exponent = code >> 3 & 15, mantissa = code & 7;
    double sign = code & 0x80 ? -1 : 1;
    if ((code & 0x7f) == 0x7f)
        return (double)NAN;
    return sign * (exponent == 0 ? ldexp(mantissa, -9) : ldexp(8 + mantissa, exponent - 10));
}

static inline uint8_t e4m3_encode(double value)
{
    static double known[0x7f];
    if (known[1] == 0) {
        for (int code = 0; code < 0x7f; code++)
            known[code] = e4m3_decode((uint8_t)code);
    }
    uint8_t sign = signbit(value) ? 0x80 : 0, best;
    double magnitude = fabs(value);
    if (isnan(value))
        return sign | 0x7f;
    if (magnitude > 448)
        return sign | 0x7e;
    int below = 0, above = 0x7f;
    while (above - below > 1) {
        int middle = (below + above) / 2;
        if (known[middle] <= magnitude)
            below = middle;
        else
            above = middle;
    }
    double lower = magnitude - known[below];
    double upper = below < 0x7e ? known[below + 1] - magnitude : (double)INFINITY;
    best = (uint8_t)(upper < lower || (upper == lower && below % 2 == 1) ? below + 1 : below);
    return sign | best;
}

#endif
