/* Reference implementation of MXFP8: scales by search, elements by comparison with all values. */
#ifndef TESTS_RESHARD_MXFP8_REFERENCE_H
#define TESTS_RESHARD_MXFP8_REFERENCE_H

#include <banyan/transform.h>

#include "support/float_reference.h"

/* The scale's exponent of a block whose largest magnitude, ignoring NaN, is amax. */
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
