/* Converts elements during a move: casts units of them, and quantizes blocks of 32 values to
 * elements or to scales.
 *
 * If a block's values are contiguous, neighbouring lanes of a warp share it, 16 bytes each: then a
 * warp's accesses are contiguous, with many loads in flight. Otherwise one thread processes a
 * block value by value. */
#ifndef CUDA_COPY_CONVERT_CUH
#define CUDA_COPY_CONVERT_CUH

#include "core/types/float_bits.h"
#include "core/types/mxfp8_bits.h"
#include "cuda/copy/memory.cuh"
#include "cuda/copy/work.h"

/* Return one element as f32 bits. */
static __device__ __forceinline__ uint32_t widen(uint32_t half, bool is_f16)
{
    return is_f16 ? f32_of_f16((uint16_t)half) : f32_of_bf16((uint16_t)half);
}

static __device__ __forceinline__ uint32_t narrow(uint32_t bits, bool is_f16)
{
    return is_f16 ? f16_of_f32(bits) : bf16_of_f32(bits);
}

static __device__ __forceinline__ bool is_from_f32(copy_cast cast)
{
    return cast == COPY_F32_TO_F16 || cast == COPY_F32_TO_BF16;
}

static __device__ __forceinline__ bool is_from_f16(copy_cast cast)
{
    return cast == COPY_F16_TO_F32 || cast == COPY_F16_TO_BF16;
}

static __device__ __forceinline__ bool is_to_f32(copy_cast cast)
{
    return cast == COPY_F16_TO_F32 || cast == COPY_BF16_TO_F32;
}

static __device__ __forceinline__ bool is_to_f16(copy_cast cast)
{
    return cast == COPY_F32_TO_F16 || cast == COPY_BF16_TO_F16;
}

static __device__ __forceinline__ uint4 load_four(const char *from, copy_cast cast)
{
    bool f16 = is_from_f16(cast);
    if (is_from_f32(cast))
        return load_word((const uint4 *)from);
    uint2 halves = load_word((const uint2 *)from);
    return make_uint4(widen(halves.x & 0xffff, f16), widen(halves.x >> 16, f16),
                      widen(halves.y & 0xffff, f16), widen(halves.y >> 16, f16));
}

static __device__ __forceinline__ void store_four(char *to, uint4 bits, copy_cast cast)
{
    bool f16 = is_to_f16(cast);
    if (is_to_f32(cast)) {
        banyan_device_store<uint4>(to, bits);
        return;
    }
    uint2 halves = make_uint2(narrow(bits.x, f16) | narrow(bits.y, f16) << 16,
                              narrow(bits.z, f16) | narrow(bits.w, f16) << 16);
    banyan_device_store<uint2>(to, halves);
}

static __device__ __forceinline__ void cast_one(char *to, const char *from, copy_cast cast)
{
    uint32_t bits = is_from_f32(cast) ? load_word((const uint32_t *)from)
                                      : widen(load_word((const uint16_t *)from), is_from_f16(cast));
    if (is_to_f32(cast))
        banyan_device_store<uint32_t>(to, bits);
    else
        banyan_device_store<uint16_t>(to, (uint16_t)narrow(bits, is_to_f16(cast)));
}

#define WHOLE_WARP 0xffffffffu

static __device__ __forceinline__ uint32_t value_at(const char *from, unsigned kind)
{
    if (kind & COPY_FROM_F32)
        return load_word((const uint32_t *)from);
    return widen(load_word((const uint16_t *)from), (kind & COPY_FROM_F16) != 0);
}

/* NaN is ignored for the scale, but makes the block a hard one. */
static __device__ __noinline__ uint8_t scale_at(const char *from, int64_t step, unsigned kind,
                                                bool *is_easy)
{
    uint32_t amax = 0;
    bool has_nan = false;
    for (int i = 0; i < COPY_BLOCK; i++) {
        uint32_t magnitude = value_at(from + i * step, kind) & ~F32_SIGN;
        bool is_nan = magnitude > F32_INFINITY;
        has_nan |= is_nan;
        amax = !is_nan && magnitude > amax ? magnitude : amax;
    }
    uint8_t scale = block_scale((kind & COPY_ROUND_UP) != 0, amax);
    *is_easy = !has_nan && scale_is_easy(scale);
    return scale;
}

static __device__ __noinline__ void quantize_hard(char *to, int64_t to_step, const char *from,
                                                  int64_t from_step, int count, unsigned kind,
                                                  uint8_t scale)
{
    for (int i = 0; i < count; i++)
        banyan_device_store<uint8_t>(to + i * to_step,
                                     any_element(value_at(from + i * from_step, kind), scale));
}

static __device__ __noinline__ void quantize_block(char *to, const char *from, int64_t to_step,
                                                   int64_t from_step, unsigned kind)
{
    bool is_easy;
    uint8_t scale = scale_at(from, from_step, kind, &is_easy);
    float factor = f32_of_bits(F32_POWER(E8M0_BIAS - scale));
    if (kind & COPY_TO_SCALES) {
        banyan_device_store<uint8_t>(to, scale);
        return;
    }
    if (!is_easy) {
        quantize_hard(to, to_step, from, from_step, COPY_BLOCK, kind, scale);
        return;
    }
    for (int i = 0; i < COPY_BLOCK; i++)
        banyan_device_store<uint8_t>(to + i * to_step,
                                     easy_element(value_at(from + i * from_step, kind), factor));
}

/* Convert four values of an easy block; `values` are f32 bits. */
static __device__ __forceinline__ uint32_t easy_four(const uint32_t *values, float factor)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    uint16_t low, high;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;"
        : "=h"(low)
        : "f"(f32_of_bits(values[1]) * factor), "f"(f32_of_bits(values[0]) * factor));
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;"
        : "=h"(high)
        : "f"(f32_of_bits(values[3]) * factor), "f"(f32_of_bits(values[2]) * factor));
    return low | (uint32_t)high << 16;
#else
    uint32_t four = 0;
    for (int i = 0; i < 4; i++)
        four |= (uint32_t)easy_element(values[i], factor) << 8 * i;
    return four;
#endif
}

/* The division of a block of one kind of values among lanes. */
template <unsigned kind> struct sharing {
    enum : int {
        bytes = kind == COPY_FROM_F32 ? 4 : 2,
        lanes = COPY_BLOCK * bytes / 16,
        values = COPY_BLOCK / lanes
    };
};

/* Convert a lane's part of its block to f32 bits. NaN remains NaN. */
template <unsigned kind> static __device__ __forceinline__ void unpack(uint4 bits, uint32_t *values)
{
    const uint32_t words[] = {bits.x, bits.y, bits.z, bits.w};
    BANYAN_DEVICE_UNROLL
    for (int i = 0; i < sharing<kind>::values; i++) {
        if (kind == COPY_FROM_F32)
            values[i] = words[i % 4];
        else if (kind == COPY_FROM_F16)
            values[i] = f32_of_f16((uint16_t)(words[i / 2] >> i % 2 * 16));
        else
            values[i] = i % 2 == 0 ? words[i / 2] << 16 : words[i / 2] & 0xffff0000u;
    }
}

/* Return the larger one, or the larger ones of two pairs of 16 bits. */
template <bool pairs> static __device__ __forceinline__ uint32_t larger(uint32_t a, uint32_t b)
{
    if (!pairs)
        return a > b ? a : b;
#ifdef __CUDA_ARCH__
    return __vmaxu2(a, b);
#else
    uint32_t low = (a & 0xffff) > (b & 0xffff) ? a : b;
    uint32_t high = a >> 16 > b >> 16 ? a : b;
    return (low & 0xffff) | (high & 0xffff0000u);
#endif
}

/* Return the magnitude of a value, or of two of 16 bits; if `skip_nan`, 0 for NaN. */
template <unsigned kind>
static __device__ __forceinline__ uint32_t magnitude_of(uint32_t word, bool skip_nan)
{
    if (kind == COPY_FROM_F32) {
        uint32_t magnitude = word & ~F32_SIGN;
        return skip_nan && magnitude > F32_INFINITY ? 0 : magnitude;
    }
    const uint32_t infinity = kind == COPY_FROM_F16 ? 0x7c00 : 0x7f80;
    uint32_t low = word & 0x7fff, high = word >> 16 & 0x7fff;
    low = skip_nan && low > infinity ? 0 : low;
    high = skip_nan && high > infinity ? 0 : high;
    return skip_nan ? low | high << 16 : word & 0x7fff7fffu;
}

/* Return the largest magnitude of a block, as f32 bits: of the block whose number among `lanes` is
 * the lane's number among those that share it. At each step, a lane keeps half of the blocks. */
template <unsigned kind>
static __device__ __forceinline__ uint32_t block_max(const uint4 *bits, bool skip_nan)
{
    const bool pairs = kind != COPY_FROM_F32;
    const int lanes = sharing<kind>::lanes, lane = (int)(threadIdx.x % COPY_WARP);
    uint32_t most[lanes];
    BANYAN_DEVICE_UNROLL
    for (int i = 0; i < lanes; i++) {
        uint32_t x = magnitude_of<kind>(bits[i].x, skip_nan);
        uint32_t y = magnitude_of<kind>(bits[i].y, skip_nan);
        uint32_t z = magnitude_of<kind>(bits[i].z, skip_nan);
        uint32_t w = magnitude_of<kind>(bits[i].w, skip_nan);
        most[i] = larger<pairs>(larger<pairs>(x, y), larger<pairs>(z, w));
    }
    BANYAN_DEVICE_UNROLL
    for (int apart = lanes / 2; apart > 0; apart /= 2) {
        bool upper = (lane & apart) != 0;
        BANYAN_DEVICE_UNROLL
        for (int i = 0; i < apart; i++) {
            uint32_t given = upper ? most[i] : most[i + apart];
            uint32_t kept = upper ? most[i + apart] : most[i];
            most[i] = larger<pairs>(kept, __shfl_sync(WHOLE_WARP, given, lane ^ apart));
        }
    }
    if (!pairs)
        return most[0];
    uint32_t half = larger<false>(most[0] & 0xffff, most[0] >> 16);
    return widen(half, kind == COPY_FROM_F16);
}

/* Like scale_at, of the lane's own block; all lanes of the warp take part. A block of zeros is easy
 * under any scale. */
template <unsigned kind>
static __device__ __forceinline__ uint8_t own_scale(const uint4 *bits, bool round_up, bool *is_easy)
{
    uint32_t amax = block_max<kind>(bits, false);
    bool has_nan = amax > F32_INFINITY;
    if (__any_sync(WHOLE_WARP, has_nan))
        amax = block_max<kind>(bits, true);
    uint8_t scale = block_scale(round_up, amax);
    *is_easy = !has_nan && (amax == 0 || scale_is_easy(scale));
    return scale;
}

/* Store the lane's part of an easy block at `to`. */
template <unsigned kind>
static __device__ __forceinline__ void store_shared(char *to, unsigned part, uint4 bits,
                                                    float factor)
{
    uint32_t values[sharing<kind>::values];
    unpack<kind>(bits, values);
    uint32_t first = easy_four(values, factor);
    if (kind == COPY_FROM_F32)
        banyan_device_store<uint32_t>(to + 4 * part, first);
    else
        banyan_device_store<uint2>(
            to + 8 * part,
            make_uint2(first, easy_four(values + sharing<kind>::values - 4, factor)));
}

#endif
