#include "common/pattern.h"

#define THREADS 256
#define BLOCKS 1024 /* at most; they take pieces in turn */

static __device__ void add_wrong(uint64_t *wrong, uint64_t mine)
{
    if (mine > 0)
        atomicAdd((unsigned long long *)wrong, (unsigned long long)mine);
}

static __device__ uint32_t load(const char *at, uint32_t bytes)
{
    if (bytes == 4)
        return *(const uint32_t *)at;
    return bytes == 2 ? *(const uint16_t *)at : *(const uint8_t *)at;
}

static __device__ void store(char *at, uint32_t bytes, uint32_t value)
{
    if (bytes == 4)
        *(uint32_t *)at = value;
    else if (bytes == 2)
        *(uint16_t *)at = (uint16_t)value;
    else
        *(uint8_t *)at = (uint8_t)value;
}

static __device__ uint32_t lowest(uint32_t value, uint32_t bytes)
{
    return bytes == 4 ? value : value & ((1u << 8 * bytes) - 1);
}

template <bool fills>
static __global__ void pattern_kernel(const pattern_piece *pieces, size_t count, uint64_t *wrong)
{
    uint64_t mine = 0;
    for (size_t i = blockIdx.x; i < count; i += gridDim.x) {
        const pattern_piece piece = pieces[i];
        const many_area *of = &piece.area;
        for (uint64_t place = piece.first + threadIdx.x; place < piece.end; place += THREADS) {
            uint64_t outer = place / of->pitch, inner = place - outer * of->pitch;
            uint64_t index = outer * of->outer_step + inner * of->inner_step;
            uint32_t value = many_value(of->name, index);
            char *at = of->data + place * of->elem_bytes;
            if (fills && inner < of->inner)
                store(at, of->elem_bytes, value);
            else if (!fills)
                mine += load(at, of->elem_bytes) !=
                        lowest(inner < of->inner ? value : PATTERN_POISON * 0x01010101u,
                               of->elem_bytes);
        }
    }
    if (!fills)
        add_wrong(wrong, mine);
}

static unsigned blocks_for(size_t pieces)
{
    return pieces < BLOCKS ? (unsigned)pieces : BLOCKS;
}

cudaError_t pattern_fill(const pattern_piece *pieces, size_t count, cudaStream_t stream)
{
    if (count > 0)
        pattern_kernel<true><<<blocks_for(count), THREADS, 0, stream>>>(pieces, count, NULL);
    return cudaGetLastError();
}

cudaError_t pattern_check(const pattern_piece *pieces, size_t count, uint64_t *wrong,
                          cudaStream_t stream)
{
    if (count > 0)
        pattern_kernel<false><<<blocks_for(count), THREADS, 0, stream>>>(pieces, count, wrong);
    return cudaGetLastError();
}

static __global__ void compare_kernel(const uint8_t *a, const uint8_t *b, size_t bytes,
                                      uint64_t *wrong)
{
    size_t thread = (size_t)blockIdx.x * THREADS + threadIdx.x,
           threads = (size_t)gridDim.x * THREADS;
    size_t words = ((uintptr_t)a | (uintptr_t)b) % 16 == 0 ? bytes / 16 : 0;
    uint64_t mine = 0;
    for (size_t i = thread; i < words; i += threads) {
        uint4 x = ((const uint4 *)a)[i], y = ((const uint4 *)b)[i];
        if (x.x != y.x || x.y != y.y || x.z != y.z || x.w != y.w)
            for (int k = 0; k < 16; k++)
                mine += a[16 * i + k] != b[16 * i + k];
    }
    for (size_t i = 16 * words + thread; i < bytes; i += threads)
        mine += a[i] != b[i];
    add_wrong(wrong, mine);
}

cudaError_t pattern_compare(const void *a, const void *b, size_t bytes, uint64_t *wrong,
                            cudaStream_t stream)
{
    compare_kernel<<<BLOCKS, THREADS, 0, stream>>>((const uint8_t *)a, (const uint8_t *)b, bytes,
                                                   wrong);
    return cudaGetLastError();
}
