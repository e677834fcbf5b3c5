/* Words of 16 bytes that are put together in registers, and parts of them. */
#ifndef CUDA_COPY_SHIFT_CUH
#define CUDA_COPY_SHIFT_CUH

#include "cuda/copy/memory.cuh"

/* Return the lower word of (high, low) >> shift; shift < 32. */
static __device__ __forceinline__ uint32_t shift_pair(uint32_t low, uint32_t high, unsigned shift)
{
#ifdef __CUDA_ARCH__
    return __funnelshift_r(low, high, shift);
#else
    return (uint32_t)(((uint64_t)high << 32 | low) >> shift);
#endif
}

/* Return bytes [skip, skip + 16) of two words in a row; skip < 16. */
static __device__ __forceinline__ uint4 put_together(uint4 low, uint4 high, unsigned skip)
{
    bool two = (skip & 8) != 0, one = (skip & 4) != 0;
    unsigned shift = 8 * (skip & 3);
    uint32_t a = two ? low.z : low.x, b = two ? low.w : low.y, c = two ? high.x : low.z;
    uint32_t d = two ? high.y : low.w, e = two ? high.z : high.x, f = two ? high.w : high.y;
    uint32_t v = one ? b : a, w = one ? c : b, x = one ? d : c, y = one ? e : d, z = one ? f : e;
    return make_uint4(shift_pair(v, w, shift), shift_pair(w, x, shift), shift_pair(x, y, shift),
                      shift_pair(y, z, shift));
}

static __device__ __forceinline__ uint32_t quarter_at(uint4 word, unsigned byte)
{
    uint32_t low = byte & 4 ? word.y : word.x, high = byte & 4 ? word.w : word.z;
    return (byte & 8 ? high : low) >> 8 * (byte & 3);
}

/* Store bytes [first, end) of a word, as few aligned parts. Either first is 0 or end is 16: a run
 * is longer than a word. */
static __device__ __noinline__ void store_bytes(char *to, uint4 word, unsigned first, unsigned end)
{
    if (first & 1)
        banyan_device_store<uint8_t>(to + first, (uint8_t)quarter_at(word, first));
    first += first & 1;
    if (first & 2)
        banyan_device_store<uint16_t>(to + first, (uint16_t)quarter_at(word, first));
    first += first & 2;
    if (first & 4)
        banyan_device_store<uint32_t>(to + first, quarter_at(word, first));
    first += first & 4;
    if (first & 8)
        banyan_device_store<uint2>(to + first, make_uint2(word.z, word.w));
    if (end == 16)
        return;
    if (end & 8)
        banyan_device_store<uint2>(to, make_uint2(word.x, word.y));
    if (end & 4)
        banyan_device_store<uint32_t>(to + (end & 8), quarter_at(word, end & 8));
    if (end & 2)
        banyan_device_store<uint16_t>(to + (end & 12), (uint16_t)quarter_at(word, end & 12));
    if (end & 1)
        banyan_device_store<uint8_t>(to + (end & 14), (uint8_t)quarter_at(word, end & 14));
}

#endif
