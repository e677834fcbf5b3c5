/* MXFP8 by the book: scales by search, elements by comparing with the values there are. */
#ifndef TESTS_RESHARD_MXFP8_REFERENCE_H
#define TESTS_RESHARD_MXFP8_REFERENCE_H

#include <banyan/transform.h>

#include "reshard/float_reference.h"

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

/* The scale's exponent of a block whose largest magnitude, NaN left out, is amax. */
static inline int mxfp8_reference_exponent(banyan_mxfp8_rule rule, double amax)
{
    int exponent = -127;
    if (rule == BANYAN_MXFP8_ROUND_UP) {
        while (exponent < 127 && ldexp(448, exponent) < amax)
            exponent++;
    } else {
        while (exponent < 127 && ldexp(1, exponent + 1 + 8) <= amax)
            exponent++;
    }
    return exponent;
}

static inline void mxfp8_reference_block(banyan_mxfp8_rule rule, const double *values, int count,
                                         uint8_t *elements, uint8_t *scale)
{
    double amax = 0;
    for (int i = 0; i < count; i++)
        amax = fmax(amax, fabs(values[i]));
    int exponent = mxfp8_reference_exponent(rule, amax);
    *scale = (uint8_t)(exponent + 127);
    for (int i = 0; i < count; i++)
        elements[i] = e4m3_encode(ldexp(values[i], -exponent));
}

/* Not for NaN scales. */
static inline double mxfp8_reference_value(uint8_t element, uint8_t scale)
{
    return ldexp(e4m3_decode(element), scale - 127);
}

#endif
