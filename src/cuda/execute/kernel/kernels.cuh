/* The kernels of one element type. A file for each type lets them compile side by side. */
#ifndef CUDA_EXECUTE_KERNEL_KERNELS_CUH
#define CUDA_EXECUTE_KERNEL_KERNELS_CUH

#include "cuda/execute/kernel/direct.cuh"
#include "cuda/execute/kernel/interpret.cuh"
#include "cuda/execute/kernel/quick.cuh"

#define EXECUTE_DEFINE_KERNEL(name, run, type)                                                     \
    static __global__ void __launch_bounds__(KERNEL_THREADS_MOST, 1)                               \
        name(const __grid_constant__ kernel_args args)                                             \
    {                                                                                              \
        run<banyan_device_##type>(&args);                                                          \
    }

#define EXECUTE_DEFINE_KERNELS(type)                                                               \
    EXECUTE_DEFINE_KERNEL(execute_##type, interpret, type)                                         \
    EXECUTE_DEFINE_KERNEL(execute_quick_##type, quick, type)                                       \
    EXECUTE_DEFINE_KERNEL(execute_direct_##type, direct, type)                                     \
                                                                                                   \
    const void *execute_kernel_##type(kernel_kind kind)                                            \
    {                                                                                              \
        switch (kind) {                                                                            \
        case KERNEL_QUICK:                                                                         \
            return DEVICE_KERNEL(execute_quick_##type, kernel_args);                               \
        case KERNEL_DIRECT:                                                                        \
            return DEVICE_KERNEL(execute_direct_##type, kernel_args);                              \
        default:                                                                                   \
            return DEVICE_KERNEL(execute_##type, kernel_args);                                     \
        }                                                                                          \
    }

#endif
