/* NVSHMEM's device library for emulated kernels. The emulated network carries its puts. */
#ifndef EMULATION_NVSHMEM_H
#define EMULATION_NVSHMEM_H

#include "emulation.hpp"
#include "image.h"

#define NVSHMEM_SIGNAL_SET 9
#define NVSHMEM_CMP_EQ 0

extern emulated_nvshmem_state emulated_nvshmem;

static inline void nvshmemx_putmem_signal_nbi_block(void *to, const void *from, size_t bytes,
                                                    uint64_t *word, uint64_t value, int, int pe)
{
    __syncthreads();
    if (threadIdx.x == 0) {
        emulated_release();
        emulated_nvshmem.put(to, from, bytes, word, value, pe);
    }
    __syncthreads();
}

static inline void nvshmemx_putmem_signal_nbi_warp(void *to, const void *from, size_t bytes,
                                                   uint64_t *word, uint64_t value, int, int pe)
{
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
        emulated_release();
        emulated_nvshmem.put(to, from, bytes, word, value, pe);
    }
    __syncwarp();
}

static inline void nvshmem_uint64_wait_until(uint64_t *word, int, uint64_t value)
{
    while (__atomic_load_n(word, __ATOMIC_ACQUIRE) != value ||
           __atomic_load_n(emulated_nvshmem.unplaced, __ATOMIC_ACQUIRE) != 0)
        emulated_yield();
}

#endif
