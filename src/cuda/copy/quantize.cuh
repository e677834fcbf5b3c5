/* Quantizing blocks on their way, to elements or to scales. A thread does a block alone, wherever
 * its values are; where they lie together lanes next to each other share it, each with 16 bytes of
 * its values, so that what a warp reads and writes at a time is contiguous. */
#ifndef CUDA_COPY_QUANTIZE_CUH
#define CUDA_COPY_QUANTIZE_CUH

#include "core/mxfp8_bits.h"
#include "cuda/copy/cast.cuh"

static __device__ __forceinline__ uint32_t value_at(const char *from, unsigned kind)
{
    if (kind & COPY_FROM_F32)
        return load_word((const uint32_t *)from);
    return widen(load_word((const uint16_t *)from), (kind & COPY_FROM_F16) != 0);
}

static __device__ __forceinline__ void load_values(const char *from, int64_t step, unsigned kind,
                                                   uint32_t *values)
{
    int64_t bytes = kind & COPY_FROM_F32 ? 4 : 2;
    bool f16 = (kind & COPY_FROM_F16) != 0;
    if (step != bytes || (uintptr_t)from % 16 != 0) {
        BANYAN_DEVICE_UNROLL
        for (int i = 0; i < COPY_BLOCK; i++)
            values[i] = value_at(from + i * step, kind);
    } else if (kind & COPY_FROM_F32) {
        BANYAN_DEVICE_UNROLL
        for (int i = 0; i < COPY_BLOCK; i += 4) {
            uint4 four = load_word((const uint4 *)(from + 4 * i));
            values[i] = four.x, values[i + 1] = four.y;
            values[i + 2] = four.z, values[i + 3] = four.w;
        }
    } else {
        BANYAN_DEVICE_UNROLL
        for (int i = 0; i < COPY_BLOCK; i += 8) {
            uint4 eight = load_word((const uint4 *)(from + 2 * i));
            values[i] = widen(eight.x & 0xffff, f16), values[i + 1] = widen(eight.x >> 16, f16);
            values[i + 2] = widen(eight.y & 0xffff, f16), values[i + 3] = widen(eight.y >> 16, f16);
            values[i + 4] = widen(eight.z & 0xffff, f16), values[i + 5] = widen(eight.z >> 16, f16);
            values[i + 6] = widen(eight.w & 0xffff, f16), values[i + 7] = widen(eight.w >> 16, f16);
        }
    }
}

/* NaN does not count for the scale, and makes the block one of the hard ones. */
static __device__ __forceinline__ uint8_t scale_of(const uint32_t *values, unsigned kind,
                                                   bool *is_easy)
{
    uint32_t amax = 0;
    bool has_nan = false;
    BANYAN_DEVICE_UNROLL
    for (int i = 0; i < COPY_BLOCK; i++) {
        uint32_t magnitude = values[i] & ~F32_SIGN;
        bool is_nan = magnitude > F32_INFINITY;
        has_nan |= is_nan;
        amax = !is_nan && magnitude > amax ? magnitude : amax;
    }
    uint8_t scale = block_scale((kind & COPY_ROUND_UP) != 0, amax);
    *is_easy = !has_nan && scale_is_easy(scale);
    return scale;
}

static __device__ __forceinline__ void store_elements(char *to, int64_t step, const uint32_t *words)
{
    if (step == 1 && (uintptr_t)to % 16 == 0) {
        banyan_device_store<uint4>(to, make_uint4(words[0], words[1], words[2], words[3]));
        banyan_device_store<uint4>(to + 16, make_uint4(words[4], words[5], words[6], words[7]));
        return;
    }
    BANYAN_DEVICE_UNROLL
    for (int i = 0; i < COPY_BLOCK; i++)
        banyan_device_store<uint8_t>(to + i * step, (uint8_t)(words[i / 4] >> i % 4 * 8));
}

static __device__ __noinline__ void quantize_block(char *to, const char *from, int64_t to_step,
                                                   int64_t from_step, unsigned kind)
{
    uint32_t values[COPY_BLOCK], words[COPY_BLOCK / 4];
    bool is_easy;
    load_values(from, from_step, kind, values);
    uint8_t scale = scale_of(values, kind, &is_easy);
    if (kind & COPY_TO_SCALES) {
        banyan_device_store<uint8_t>(to, scale);
        return;
    }
    float factor = f32_of_bits(F32_POWER(E8M0_BIAS - scale));
    BANYAN_DEVICE_UNROLL
    for (int i = 0; i < COPY_BLOCK; i++) {
        uint32_t element =
            is_easy ? easy_element(values[i], factor) : any_element(values[i], scale);
        words[i / 4] = i % 4 == 0 ? element : words[i / 4] | element << i % 4 * 8;
    }
    store_elements(to, to_step, words);
}

/* ---- shared blocks ---- */

#define WHOLE_WARP 0xffffffffu

/* The largest that a block's lanes have. */
template <int lanes> static __device__ __forceinline__ uint32_t block_max(uint32_t value)
{
    int lane = (int)(threadIdx.x % COPY_WARP);
    BANYAN_DEVICE_UNROLL
    for (int apart = 1; apart < lanes; apart *= 2) {
        uint32_t other = __shfl_sync(WHOLE_WARP, value, lane ^ apart);
        value = other > value ? other : value;
    }
    return value;
}

/* A lane's values of a block that `lanes` lanes share. */
template <int lanes>
static __device__ __forceinline__ void unpack_values(uint4 bits, bool f16, uint32_t *values)
{
    const uint32_t words[] = {bits.x, bits.y, bits.z, bits.w};
    BANYAN_DEVICE_UNROLL
    for (int i = 0; i < COPY_BLOCK / lanes; i++)
        values[i] = lanes == 8 ? words[i % 4] : widen(words[i / 2] >> i % 2 * 16 & 0xffff, f16);
}

/* As scale_of, and all lanes of the warp take part. */
template <int lanes>
static __device__ __forceinline__ uint8_t shared_scale(const uint32_t *values, unsigned kind,
                                                       bool *is_easy)
{
    uint32_t largest = 0;
    BANYAN_DEVICE_UNROLL
    for (int i = 0; i < COPY_BLOCK / lanes; i++) {
        uint32_t magnitude = values[i] & ~F32_SIGN;
        largest = magnitude > largest ? magnitude : largest;
    }
    largest = block_max<lanes>(largest);
    bool has_nan = largest > F32_INFINITY;
    if (__any_sync(WHOLE_WARP, has_nan)) {
        largest = 0;
        BANYAN_DEVICE_UNROLL
        for (int i = 0; i < COPY_BLOCK / lanes; i++) {
            uint32_t magnitude = values[i] & ~F32_SIGN;
            largest = magnitude <= F32_INFINITY && magnitude > largest ? magnitude : largest;
        }
        largest = block_max<lanes>(largest);
    }
    uint8_t scale = block_scale((kind & COPY_ROUND_UP) != 0, largest);
    *is_easy = !has_nan && scale_is_easy(scale);
    return scale;
}

template <int lanes>
static __device__ __forceinline__ void store_shared(char *to, const uint32_t *values, uint8_t scale,
                                                    bool is_easy)
{
    uint32_t words[2] = {0, 0};
    float factor = f32_of_bits(F32_POWER(E8M0_BIAS - scale));
    BANYAN_DEVICE_UNROLL
    for (int i = 0; i < COPY_BLOCK / lanes; i++) {
        uint32_t element =
            is_easy ? easy_element(values[i], factor) : any_element(values[i], scale);
        words[i / 4] |= element << i % 4 * 8;
    }
    if (lanes == 8)
        banyan_device_store<uint32_t>(to, words[0]);
    else
        banyan_device_store<uint2>(to, make_uint2(words[0], words[1]));
}

#endif
