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

/* With these flags. */
#define MIXED_DEFINE_THREE(type, suffix, any, multicast)                                           \
    MIXED_DEFINE_KERNEL(mixed_waits_##suffix##type, waits, mixed_waits_args, banyan_device_##type, \
                        any, multicast)                                                            \
    MIXED_DEFINE_KERNEL(mixed_bytes_##suffix##type, bytes, mixed_bytes_args, banyan_device_##type, \
                        any, multicast)                                                            \
    MIXED_DEFINE_KERNEL(mixed_nodes_##suffix##type, nodes, nodes_args, banyan_device_##type, any,  \
                        multicast, nodes_no_puts)

#define MIXED_DEFINE_KERNELS(type)                                                                 \
    MIXED_DEFINE_THREE(type, , false, false)                                                       \
    MIXED_DEFINE_THREE(type, any_, true, false)                                                    \
    MIXED_DEFINE_THREE(type, multicast_, false, true)                                              \
    MIXED_DEFINE_THREE(type, multicast_any_, true, true)                                           \
                                                                                                   \
    const void *mixed_kernel_##type(mixed_kernel kernel)                                           \
    {                                                                                              \
        switch (kernel) {                                                                          \
        case MIXED_WAITS:                                                                          \
            return DEVICE_KERNEL(mixed_waits_##type, mixed_waits_args);                            \
        case MIXED_WAITS_ANY:                                                                      \
            return DEVICE_KERNEL(mixed_waits_any_##type, mixed_waits_args);                        \
        case MIXED_WAITS_MULTICAST:                                                                \
            return DEVICE_KERNEL(mixed_waits_multicast_##type, mixed_waits_args);                  \
        case MIXED_WAITS_MULTICAST_ANY:                                                            \
            return DEVICE_KERNEL(mixed_waits_multicast_any_##type, mixed_waits_args);              \
        case MIXED_BYTES:                                                                          \
            return DEVICE_KERNEL(mixed_bytes_##type, mixed_bytes_args);                            \
        case MIXED_BYTES_ANY:                                                                      \
            return DEVICE_KERNEL(mixed_bytes_any_##type, mixed_bytes_args);                        \
        case MIXED_BYTES_MULTICAST:                                                                \
            return DEVICE_KERNEL(mixed_bytes_multicast_##type, mixed_bytes_args);                  \
        case MIXED_BYTES_MULTICAST_ANY:                                                            \
            return DEVICE_KERNEL(mixed_bytes_multicast_any_##type, mixed_bytes_args);              \
        case MIXED_NODES:                                                                          \
            return DEVICE_KERNEL(mixed_nodes_##type, nodes_args);                                  \
        case MIXED_NODES_ANY:                                                                      \
            return DEVICE_KERNEL(mixed_nodes_any_##type, nodes_args);                              \
        case MIXED_NODES_MULTICAST:                                                                \
            return DEVICE_KERNEL(mixed_nodes_multicast_##type, nodes_args);                        \
        default:                                                                                   \
            return DEVICE_KERNEL(mixed_nodes_multicast_any_##type, nodes_args);                    \
        }                                                                                          \
    }

#endif
