/* Macros for device code, so that it compiles for a GPU by nvcc and, as plain C++, for the
 * emulation that tests use (tests/emulation). */
#ifndef CUDA_RUNTIME_DEVICE_CUH
#define CUDA_RUNTIME_DEVICE_CUH

#ifdef __CUDACC__

/* The address that driver_kernel looks up. A kernel takes one struct, by value. */
#define DEVICE_KERNEL(kernel, args_type) ((const void *)(kernel))

/* The thread block's shared memory, of the size that its launch requested. */
static __device__ __forceinline__ char *device_shared(void)
{
    extern __shared__ __align__(128) char device_shared_memory[];
    return device_shared_memory;
}

/* Call it in every iteration of a waiting loop. */
static __device__ __forceinline__ void device_pause(void) {}

#else
#include "emulation.hpp"
#endif

#endif
