/* The kernels of one element type. */
#ifndef CUDA_MIXED_KERNELS_CUH
#define CUDA_MIXED_KERNELS_CUH

#include "cuda/mixed/bytes.cuh"
#include "cuda/mixed/nodes.cuh"
#include "cuda/mixed/waits.cuh"

#define MIXED_DEFINE_KERNEL(name, function, args_type, ...)                                        \
    static __global__ void __launch_bounds__(MIXED_THREADS_MAX)                                    \
        name(const __grid_constant__ args_type args)                                               \
    {                                                                                              \
        function<__VA_ARGS__>(&args);                                                              \
    }

#define MIXED_DEFINE_KERNELS(type)                                                                 \
    MIXED_DEFINE_KERNEL(mixed_waits_##type, waits, mixed_waits_args, banyan_device_##type, false)  \
    MIXED_DEFINE_KERNEL(mixed_waits_any_##type, waits, mixed_waits_args, banyan_device_##type,     \
                        true)                                                                      \
    MIXED_DEFINE_KERNEL(mixed_bytes_##type, bytes, mixed_bytes_args, banyan_device_##type, false)  \
    MIXED_DEFINE_KERNEL(mixed_bytes_any_##type, bytes, mixed_bytes_args, banyan_device_##type,     \
                        true)                                                                      \
    MIXED_DEFINE_KERNEL(mixed_nodes_##type, nodes, nodes_args, banyan_device_##type, false)        \
    MIXED_DEFINE_KERNEL(mixed_nodes_any_##type, nodes, nodes_args, banyan_device_##type, true)     \
                                                                                                   \
    const void *mixed_kernel_##type(mixed_kernel kernel)                                           \
    {                                                                                              \
        switch (kernel) {                                                                          \
        case MIXED_WAITS:                                                                          \
            return DEVICE_KERNEL(mixed_waits_##type, mixed_waits_args);                            \
        case MIXED_WAITS_ANY:                                                                      \
            return DEVICE_KERNEL(mixed_waits_any_##type, mixed_waits_args);                        \
        case MIXED_BYTES:                                                                          \
            return DEVICE_KERNEL(mixed_bytes_##type, mixed_bytes_args);                            \
        case MIXED_NODES:                                                                          \
            return DEVICE_KERNEL(mixed_nodes_##type, nodes_args);                                  \
        case MIXED_NODES_ANY:                                                                      \
            return DEVICE_KERNEL(mixed_nodes_any_##type, nodes_args);                              \
        default:                                                                                   \
            return DEVICE_KERNEL(mixed_bytes_any_##type, mixed_bytes_args);                        \
        }                                                                                          \
    }

#endif
