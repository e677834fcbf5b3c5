/* Casts units of elements during a move. */
#ifndef CUDA_COPY_CAST_CUH
#define CUDA_COPY_CAST_CUH

#include "core/types/float_bits.h"
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

#endif
