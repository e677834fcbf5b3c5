/* CUDA's device language as plain C++: a kernel is a function, each of its threads a fiber, and
 * all fibers of a launch take turns on one thread of the host. Turns change where device code
 * waits (device_pause, barriers), so device code must wait for the right thread. Stores become
 * visible to others when they are released (stores.h); loads are never early. */
#ifndef EMULATION_HPP
#define EMULATION_HPP

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define __device__
#define __host__
#define __global__
#define __forceinline__ inline
#define __noinline__
#define __restrict__ __restrict
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(n) alignas(n)

struct uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(16) ulonglong2 {
    unsigned long long x, y;
};

static inline uint2 make_uint2(unsigned x, unsigned y)
{
    return uint2{x, y};
}

static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w)
{
    return uint4{x, y, z, w};
}

static inline ulonglong2 make_ulonglong2(unsigned long long x, unsigned long long y)
{
    return ulonglong2{x, y};
}

struct emulated_index {
    unsigned x, y, z;
};

/* The position of the running fiber in its launch. */
struct emulated_place {
    emulated_index thread, block, block_size, grid_size;
    char *shared;
};

extern "C" {
extern __thread const emulated_place *emulated_here;
/* Let the launch's other fibers run. */
void emulated_yield(void);
/* Like emulated_yield, at random: between two stores of which others may see one without the
 * other. */
void emulated_dawdle(void);
/* Wait for all running fibers of the block, or of the warp. */
void emulated_block_barrier(void);
void emulated_warp_barrier(void);
/* Return the memory of a multicast address at its i-th device; NULL after the last. An access
 * begins with 0, and is counted. */
char *emulated_multicast_member(const void *address, unsigned i);
/* Give every lane of the warp its word, and return lane `from`'s. All lanes call it. */
uint64_t emulated_warp_exchange(uint64_t word, unsigned from);
/* As in stores.h. */
void emulated_store(void *to, const void *value, size_t bytes);
void emulated_load(void *value, const void *from, size_t bytes);
void emulated_release(void);
}

#define threadIdx (emulated_here->thread)
#define blockIdx (emulated_here->block)
#define blockDim (emulated_here->block_size)
#define gridDim (emulated_here->grid_size)

static inline void __syncthreads(void)
{
    emulated_block_barrier();
}

static inline int __syncthreads_or(int predicate)
{
    int any = 0;
    emulated_block_barrier();
    int *word = (int *)(emulated_here->shared - 64);
    *word = 0;
    emulated_block_barrier();
    if (predicate)
        *word = 1;
    emulated_block_barrier();
    any = *word;
    emulated_block_barrier();
    return any;
}

static inline void __syncwarp(unsigned = 0xffffffffu)
{
    emulated_warp_barrier();
}

template <typename T> static inline T __shfl_sync(unsigned, T value, int lane)
{
    uint64_t word = 0;
    memcpy(&word, &value, sizeof value);
    word = emulated_warp_exchange(word, (unsigned)lane % 32);
    memcpy(&value, &word, sizeof value);
    return value;
}

static inline int __any_sync(unsigned, int predicate)
{
    int any = 0;
    for (unsigned lane = 0; lane < 32; lane++)
        any |= (int)emulated_warp_exchange((uint64_t)(predicate != 0), lane);
    return any;
}

/* The low word of two, moved right by 0 to 31 bits. */
static inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift)
{
    return (unsigned)(((uint64_t)high << 32 | low) >> (shift & 31));
}

static inline int __popc(unsigned bits)
{
    return __builtin_popcount(bits);
}

static inline int __popcll(unsigned long long bits)
{
    return __builtin_popcountll(bits);
}

/* From 1 on; 0: no bit is set. */
static inline int __ffsll(long long bits)
{
    return __builtin_ffsll(bits);
}

static inline int __clzll(long long bits)
{
    return bits ? __builtin_clzll((unsigned long long)bits) : 64;
}

static inline char *device_shared(void)
{
    return emulated_here->shared;
}

static inline void device_pause(void)
{
    emulated_yield();
}

/* The function that a launch calls, and the size of its one argument, which it copies. */
struct emulated_kernel {
    void (*call)(const void *args);
    size_t args_bytes;
};

template <typename Args, void (*kernel)(Args)> static const void *emulated_kernel_of(void)
{
    static const emulated_kernel entry = {[](const void *args) { kernel(*(const Args *)args); },
                                          sizeof(Args)};
    return &entry;
}

#define DEVICE_KERNEL(kernel, args_type) (emulated_kernel_of<args_type, kernel>())

#endif
