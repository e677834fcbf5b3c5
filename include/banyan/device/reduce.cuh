/* Banyan in kernels: elements and their reduction.
 *
 * Elements are taken 8 bytes at a time, converted to accumulators, reduced source by source, and
 * converted back. Floats are accumulated in f32 and rounded once, to nearest even. What is too
 * large becomes infinity, or in e4m3, which has none, the largest value with its sign. Integers
 * wrap around. A NaN in any source, or infinities that have no sum or product, make the element
 * NaN: positive, quiet, without payload. -0 is less than +0. Results equal the host's, bit for
 * bit.
 *
 *     banyan_device_sums<banyan_device_bf16> sums;
 *     sums.begin(first);
 *     sums.add<BANYAN_DEVICE_SUM>(second);
 *     uint2 reduced = sums.end();
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef BANYAN_DEVICE_REDUCE_CUH
#define BANYAN_DEVICE_REDUCE_CUH

#include <banyan/device/access.cuh>

/* The values of banyan_reduce_op. */
typedef enum banyan_device_op {
    BANYAN_DEVICE_SUM,
    BANYAN_DEVICE_MIN,
    BANYAN_DEVICE_MAX,
    BANYAN_DEVICE_PROD
} banyan_device_op;

#ifdef __CUDACC__

BANYAN_DEVICE float banyan_device_float(uint32_t bits)
{
    return __uint_as_float(bits);
}

BANYAN_DEVICE uint32_t banyan_device_bits(float value)
{
    return __float_as_uint(value);
}

/* Add with subnormals, independent of compiler flags. */
BANYAN_DEVICE float banyan_device_plus(float a, float b)
{
    float sum;
    asm("add.rn.f32 %0, %1, %2;" : "=f"(sum) : "f"(a), "f"(b));
    return sum;
}

/* Multiply likewise. */
BANYAN_DEVICE float banyan_device_times(float a, float b)
{
    float product;
    asm("mul.rn.f32 %0, %1, %2;" : "=f"(product) : "f"(a), "f"(b));
    return product;
}

BANYAN_DEVICE float banyan_device_lower(float a, float b)
{
    float lower;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(lower) : "f"(a), "f"(b));
    return lower;
}

BANYAN_DEVICE float banyan_device_higher(float a, float b)
{
    float higher;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(higher) : "f"(a), "f"(b));
    return higher;
}

#else

BANYAN_DEVICE float banyan_device_float(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

BANYAN_DEVICE uint32_t banyan_device_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

BANYAN_DEVICE float banyan_device_plus(float a, float b)
{
    return a + b;
}

BANYAN_DEVICE float banyan_device_times(float a, float b)
{
    return a * b;
}

/* Return a signed integer that orders like the float. */
BANYAN_DEVICE int32_t banyan_device_order(float value)
{
    int32_t bits = (int32_t)banyan_device_bits(value);
    return bits < 0 ? bits ^ INT32_MAX : bits;
}

BANYAN_DEVICE float banyan_device_lower(float a, float b)
{
    if (a != a || b != b)
        return a + b;
    return banyan_device_order(b) < banyan_device_order(a) ? b : a;
}

BANYAN_DEVICE float banyan_device_higher(float a, float b)
{
    if (a != a || b != b)
        return a + b;
    return banyan_device_order(b) > banyan_device_order(a) ? b : a;
}

#endif

template <banyan_device_op op> BANYAN_DEVICE float banyan_device_combine(float a, float b)
{
    return op == BANYAN_DEVICE_SUM   ? banyan_device_plus(a, b)
           : op == BANYAN_DEVICE_MIN ? banyan_device_lower(a, b)
           : op == BANYAN_DEVICE_MAX ? banyan_device_higher(a, b)
                                     : banyan_device_times(a, b);
}

/* Sums and products of integers are unsigned, so that they wrap around. */
template <banyan_device_op op, typename Int> BANYAN_DEVICE Int banyan_device_combine(Int a, Int b)
{
    return op == BANYAN_DEVICE_SUM   ? (Int)((uint64_t)a + (uint64_t)b)
           : op == BANYAN_DEVICE_MIN ? (b < a ? b : a)
           : op == BANYAN_DEVICE_MAX ? (b > a ? b : a)
                                     : (Int)((uint64_t)a * (uint64_t)b);
}

/* Small floats: two or four in a word, converted to and from f32. */

#ifdef __CUDACC__

BANYAN_DEVICE void banyan_device_f16_widen(uint32_t word, float *to)
{
    asm("{ .reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h; }"
        : "=f"(to[0]), "=f"(to[1])
        : "r"(word));
}

/* NaN becomes 0x7fff. */
BANYAN_DEVICE uint32_t banyan_device_f16_round(const float *from)
{
    uint32_t word;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(from[1]), "f"(from[0]));
    return word;
}

BANYAN_DEVICE uint32_t banyan_device_bf16_round(const float *from)
{
    uint32_t word;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(from[1]), "f"(from[0]));
    return word;
}

#endif

/* Return the value of a float with this many bits of exponent and mantissa, which is neither NaN
 * nor infinite. */
BANYAN_DEVICE float banyan_device_small_value(uint32_t bits, int exponent_bits, int mantissa_bits)
{
    int bias = (1 << (exponent_bits - 1)) - 1;
    uint32_t mantissa = bits & ((1u << mantissa_bits) - 1);
    int exponent = (int)(bits >> mantissa_bits & ((1u << exponent_bits) - 1));
    uint32_t scale = (uint32_t)((exponent > 1 ? exponent : 1) - bias - mantissa_bits + 127) << 23;
    float magnitude =
        (float)(mantissa + (exponent > 0 ? 1u << mantissa_bits : 0u)) * banyan_device_float(scale);
    return bits >> (exponent_bits + mantissa_bits) & 1 ? -magnitude : magnitude;
}

/* Round a finite float to nearest, as bits that continue beyond the largest exponent. */
BANYAN_DEVICE uint32_t banyan_device_small_bits(float value, int exponent_bits, int mantissa_bits)
{
    int bias = (1 << (exponent_bits - 1)) - 1;
    uint32_t magnitude = banyan_device_bits(value) & 0x7fffffff;
    uint32_t mantissa = (magnitude & 0x7fffff) | (magnitude >= 0x800000 ? 0x800000 : 0);
    int exponent = (int)(magnitude >= 0x800000 ? magnitude >> 23 : 1) - 127 + bias;
    int lost = 23 - mantissa_bits + (exponent < 1 ? 1 - exponent : 0);
    if (lost > 25)
        return 0;
    uint32_t rest = mantissa & ((1u << lost) - 1), half = 1u << (lost - 1);
    uint32_t kept = mantissa >> lost;
    kept += rest > half || (rest == half && (kept & 1));
    return exponent < 1 ? kept : kept + ((uint32_t)(exponent - 1) << mantissa_bits);
}

BANYAN_DEVICE uint32_t banyan_device_small_round(float value, int exponent_bits, int mantissa_bits,
                                                 uint32_t largest, uint32_t beyond, uint32_t nan)
{
    uint32_t sign = banyan_device_bits(value) >> 31 << (exponent_bits + mantissa_bits);
    if (value != value)
        return nan;
    bool infinite = (banyan_device_bits(value) & 0x7fffffff) == 0x7f800000;
    uint32_t bits =
        infinite ? beyond : banyan_device_small_bits(value, exponent_bits, mantissa_bits);
    return sign | (bits > largest ? beyond : bits);
}

#ifndef __CUDACC__

BANYAN_DEVICE float banyan_device_f16_value(uint32_t bits)
{
    if ((bits & 0x7c00) != 0x7c00)
        return banyan_device_small_value(bits, 5, 10);
    return banyan_device_float((bits & 0x8000) << 16 | 0x7f800000 | (bits & 0x3ff) << 13);
}

BANYAN_DEVICE void banyan_device_f16_widen(uint32_t word, float *to)
{
    to[0] = banyan_device_f16_value(word & 0xffff);
    to[1] = banyan_device_f16_value(word >> 16);
}

BANYAN_DEVICE uint32_t banyan_device_f16_round(const float *from)
{
    return banyan_device_small_round(from[1], 5, 10, 0x7bff, 0x7c00, 0x7fff) << 16 |
           banyan_device_small_round(from[0], 5, 10, 0x7bff, 0x7c00, 0x7fff);
}

BANYAN_DEVICE uint32_t banyan_device_bf16_round(const float *from)
{
    return banyan_device_small_round(from[1], 8, 7, 0x7f7f, 0x7f80, 0x7fff) << 16 |
           banyan_device_small_round(from[0], 8, 7, 0x7f7f, 0x7f80, 0x7fff);
}

#endif

/* Hardware instructions, since compute capability 8.9. */
#if defined(__CUDACC__) && (!defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 890)

/* NaN becomes 0x7f; a value that is too large becomes the largest value. */
BANYAN_DEVICE uint32_t banyan_device_e4m3_round(const float *from)
{
    uint32_t word;
    asm("{ .reg .b16 l, h; cvt.rn.satfinite.e4m3x2.f32 l, %2, %1;"
        " cvt.rn.satfinite.e4m3x2.f32 h, %4, %3; mov.b32 %0, {l, h}; }"
        : "=r"(word)
        : "f"(from[0]), "f"(from[1]), "f"(from[2]), "f"(from[3]));
    return word;
}

BANYAN_DEVICE uint32_t banyan_device_e5m2_round(const float *from)
{
    uint32_t word;
    asm("{ .reg .b16 l, h; cvt.rn.satfinite.e5m2x2.f32 l, %2, %1;"
        " cvt.rn.satfinite.e5m2x2.f32 h, %4, %3; mov.b32 %0, {l, h}; }"
        : "=r"(word)
        : "f"(from[0]), "f"(from[1]), "f"(from[2]), "f"(from[3]));
    return word;
}

BANYAN_DEVICE void banyan_device_e4m3_widen(uint32_t word, float *to)
{
    uint32_t halves[2];
    asm("{ .reg .b16 l, h; mov.b32 {l, h}, %2; cvt.rn.f16x2.e4m3x2 %0, l;"
        " cvt.rn.f16x2.e4m3x2 %1, h; }"
        : "=r"(halves[0]), "=r"(halves[1])
        : "r"(word));
    banyan_device_f16_widen(halves[0], to);
    banyan_device_f16_widen(halves[1], to + 2);
}

#else

BANYAN_DEVICE uint32_t banyan_device_e4m3_round(const float *from)
{
    uint32_t word = 0;
    for (int i = 0; i < 4; i++)
        word |= banyan_device_small_round(from[i], 4, 3, 0x7e, 0x7e, 0x7f) << 8 * i;
    return word;
}

BANYAN_DEVICE uint32_t banyan_device_e5m2_round(const float *from)
{
    uint32_t word = 0;
    for (int i = 0; i < 4; i++)
        word |= banyan_device_small_round(from[i], 5, 2, 0x7b, 0x7b, 0x7f) << 8 * i;
    return word;
}

BANYAN_DEVICE void banyan_device_e4m3_widen(uint32_t word, float *to)
{
    for (int i = 0; i < 4; i++) {
        uint32_t bits = word >> 8 * i & 0xff;
        to[i] = (bits & 0x7f) == 0x7f ? banyan_device_float(0x7fc00000)
                                      : banyan_device_small_value(bits, 4, 3);
    }
}

#endif

/* Insert NaN into the word of a pair with at least one NaN. */
BANYAN_DEVICE uint32_t banyan_device_pair_nan(uint32_t word, const float *from, uint32_t nan)
{
    uint32_t low = from[0] != from[0] ? nan : word & 0xffff;
    uint32_t high = from[1] != from[1] ? nan : word >> 16;
    return high << 16 | low;
}

/* Element types: 8 bytes to accumulators, and back. */

struct banyan_device_f32 {
    typedef float accumulator;
    enum { COUNT = 2 };
    static BANYAN_DEVICE_MEMBER void widen(uint2 from, float *to)
    {
        to[0] = banyan_device_float(from.x);
        to[1] = banyan_device_float(from.y);
    }
    static BANYAN_DEVICE_MEMBER uint2 narrow(const float *from)
    {
        uint32_t a = from[0] != from[0] ? 0x7fc00000 : banyan_device_bits(from[0]);
        uint32_t b = from[1] != from[1] ? 0x7fc00000 : banyan_device_bits(from[1]);
        return make_uint2(a, b);
    }
};

struct banyan_device_f16 {
    typedef float accumulator;
    enum { COUNT = 4 };
    static BANYAN_DEVICE_MEMBER void widen(uint2 from, float *to)
    {
        banyan_device_f16_widen(from.x, to);
        banyan_device_f16_widen(from.y, to + 2);
    }
    static BANYAN_DEVICE_MEMBER uint32_t narrow_pair(const float *from)
    {
        uint32_t word = banyan_device_f16_round(from);
        return from[0] != from[0] || from[1] != from[1] ? banyan_device_pair_nan(word, from, 0x7e00)
                                                        : word;
    }
    static BANYAN_DEVICE_MEMBER uint2 narrow(const float *from)
    {
        return make_uint2(narrow_pair(from), narrow_pair(from + 2));
    }
};

struct banyan_device_bf16 {
    typedef float accumulator;
    enum { COUNT = 4 };
    static BANYAN_DEVICE_MEMBER void widen(uint2 from, float *to)
    {
        to[0] = banyan_device_float(from.x << 16);
        to[1] = banyan_device_float(from.x & 0xffff0000);
        to[2] = banyan_device_float(from.y << 16);
        to[3] = banyan_device_float(from.y & 0xffff0000);
    }
    static BANYAN_DEVICE_MEMBER uint32_t narrow_pair(const float *from)
    {
        uint32_t word = banyan_device_bf16_round(from);
        return from[0] != from[0] || from[1] != from[1] ? banyan_device_pair_nan(word, from, 0x7fc0)
                                                        : word;
    }
    static BANYAN_DEVICE_MEMBER uint2 narrow(const float *from)
    {
        return make_uint2(narrow_pair(from), narrow_pair(from + 2));
    }
};

struct banyan_device_e4m3 {
    typedef float accumulator;
    enum { COUNT = 8 };
    static BANYAN_DEVICE_MEMBER void widen(uint2 from, float *to)
    {
        banyan_device_e4m3_widen(from.x, to);
        banyan_device_e4m3_widen(from.y, to + 4);
    }
    static BANYAN_DEVICE_MEMBER uint2 narrow(const float *from)
    {
        return make_uint2(banyan_device_e4m3_round(from), banyan_device_e4m3_round(from + 4));
    }
};

/* An e5m2 is the upper half of an f16. */
struct banyan_device_e5m2 {
    typedef float accumulator;
    enum { COUNT = 8 };
    static BANYAN_DEVICE_MEMBER void widen(uint2 from, float *to)
    {
        banyan_device_f16_widen((from.x & 0xff) << 8 | (from.x & 0xff00) << 16, to);
        banyan_device_f16_widen((from.x & 0xff0000) >> 8 | (from.x & 0xff000000), to + 2);
        banyan_device_f16_widen((from.y & 0xff) << 8 | (from.y & 0xff00) << 16, to + 4);
        banyan_device_f16_widen((from.y & 0xff0000) >> 8 | (from.y & 0xff000000), to + 6);
    }
    /* A value nearer to 2^16 than to the largest value becomes infinite. */
    static BANYAN_DEVICE_MEMBER uint32_t narrow_word(const float *from)
    {
        uint32_t word = banyan_device_e5m2_round(from);
        for (int i = 0; i < 4; i++) {
            uint32_t magnitude = banyan_device_bits(from[i]) & 0x7fffffff;
            uint32_t special = magnitude > 0x7f800000 ? 0x7e : (word >> 8 * i & 0x80) | 0x7c;
            if (magnitude >= 0x47700000)
                word = (word & ~(0xffu << 8 * i)) | special << 8 * i;
        }
        return word;
    }
    static BANYAN_DEVICE_MEMBER uint2 narrow(const float *from)
    {
        return make_uint2(narrow_word(from), narrow_word(from + 4));
    }
};

template <typename Int> struct banyan_device_int32 {
    typedef Int accumulator;
    enum { COUNT = 2 };
    static BANYAN_DEVICE_MEMBER void widen(uint2 from, Int *to)
    {
        to[0] = (Int)from.x;
        to[1] = (Int)from.y;
    }
    static BANYAN_DEVICE_MEMBER uint2 narrow(const Int *from)
    {
        return make_uint2((uint32_t)from[0], (uint32_t)from[1]);
    }
};
typedef banyan_device_int32<int32_t> banyan_device_i32;
typedef banyan_device_int32<uint32_t> banyan_device_u32;

struct banyan_device_i64 {
    typedef int64_t accumulator;
    enum { COUNT = 1 };
    static BANYAN_DEVICE_MEMBER void widen(uint2 from, int64_t *to)
    {
        to[0] = (int64_t)((uint64_t)from.y << 32 | from.x);
    }
    static BANYAN_DEVICE_MEMBER uint2 narrow(const int64_t *from)
    {
        return make_uint2((uint32_t)from[0], (uint32_t)((uint64_t)from[0] >> 32));
    }
};

struct banyan_device_u8 {
    typedef uint32_t accumulator;
    enum { COUNT = 8 };
    static BANYAN_DEVICE_MEMBER void widen(uint2 from, uint32_t *to)
    {
        for (int i = 0; i < 4; i++) {
            to[i] = from.x >> 8 * i & 0xff;
            to[4 + i] = from.y >> 8 * i & 0xff;
        }
    }
    static BANYAN_DEVICE_MEMBER uint2 narrow(const uint32_t *from)
    {
        uint2 to = make_uint2(0, 0);
        for (int i = 0; i < 4; i++) {
            to.x |= (from[i] & 0xff) << 8 * i;
            to.y |= (from[4 + i] & 0xff) << 8 * i;
        }
        return to;
    }
};

/* The running result of 8 bytes from each source, in registers. */
template <typename Element> struct banyan_device_sums {
    typename Element::accumulator of[Element::COUNT];

    BANYAN_DEVICE_MEMBER void begin(uint2 first) { Element::widen(first, of); }
    template <banyan_device_op op> BANYAN_DEVICE_MEMBER void add(uint2 next)
    {
        typename Element::accumulator more[Element::COUNT];
        Element::widen(next, more);
        for (int i = 0; i < (int)Element::COUNT; i++)
            of[i] = banyan_device_combine<op>(of[i], more[i]);
    }
    BANYAN_DEVICE_MEMBER uint2 end() const { return Element::narrow(of); }
};

#endif
