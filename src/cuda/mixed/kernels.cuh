/* The kernels of one element type. */
#ifndef CUDA_MIXED_KERNELS_CUH
#define CUDA_MIXED_KERNELS_CUH

#include "cuda/mixed/bytes.cuh"
#include "cuda/mixed/nodes/nodes.cuh"
#include "cuda/mixed/waits.cuh"

#define MIXED_DEFINE_KERNEL(name, function, args_type, ...)                                        \
    static __global__ void __launch_bounds__(MIXED_THREADS_MAX)                                    \
        name(const __grid_constant__ args_type args)                                               \
    {                                                                                              \
        function<__VA_ARGS__>(&args);                                                              \
    }

/* With these flags. */
#define MIXED_DEFINE_FIVE(type, suffix, any, multicast)                                            \
    MIXED_DEFINE_KERNEL(mixed_waits_##suffix##type, waits, mixed_waits_args, banyan_device_##type, \
                        any, multicast)                                                            \
    MIXED_DEFINE_KERNEL(mixed_waits_once_##suffix##type, waits_once, mixed_waits_args,             \
                        banyan_device_##type, any, multicast)                                      \
    MIXED_DEFINE_KERNEL(mixed_bytes_##suffix##type, bytes, mixed_bytes_args, banyan_device_##type, \
                        any, multicast)                                                            \
    MIXED_DEFINE_KERNEL(mixed_bytes_once_##suffix##type, bytes_once, mixed_bytes_args,             \
                        banyan_device_##type, any, multicast)                                      \
    MIXED_DEFINE_KERNEL(mixed_nodes_##suffix##type, nodes, nodes_args, banyan_device_##type, any,  \
                        multicast, nodes_no_puts)

#define MIXED_FOUR(name, type, args_type, KERNEL)                                                  \
    case KERNEL:                                                                                   \
        return DEVICE_KERNEL(name##_##type, args_type);                                            \
    case KERNEL##_ANY:                                                                             \
        return DEVICE_KERNEL(name##_any_##type, args_type);                                        \
    case KERNEL##_MULTICAST:                                                                       \
        return DEVICE_KERNEL(name##_multicast_##type, args_type);                                  \
    case KERNEL##_MULTICAST_ANY:                                                                   \
        return DEVICE_KERNEL(name##_multicast_any_##type, args_type);

#define MIXED_DEFINE_KERNELS(type)                                                                 \
    MIXED_DEFINE_FIVE(type, , false, false)                                                        \
    MIXED_DEFINE_FIVE(type, any_, true, false)                                                     \
    MIXED_DEFINE_FIVE(type, multicast_, false, true)                                               \
    MIXED_DEFINE_FIVE(type, multicast_any_, true, true)                                            \
                                                                                                   \
    const void *mixed_kernel_##type(mixed_kernel kernel)                                           \
    {                                                                                              \
        switch (kernel) {                                                                          \
            MIXED_FOUR(mixed_waits, type, mixed_waits_args, MIXED_WAITS)                           \
            MIXED_FOUR(mixed_waits_once, type, mixed_waits_args, MIXED_WAITS_ONCE)                 \
            MIXED_FOUR(mixed_bytes, type, mixed_bytes_args, MIXED_BYTES)                           \
            MIXED_FOUR(mixed_bytes_once, type, mixed_bytes_args, MIXED_BYTES_ONCE)                 \
            MIXED_FOUR(mixed_nodes, type, nodes_args, MIXED_NODES)                                 \
        default:                                                                                   \
            return NULL;                                                                           \
        }                                                                                          \
    }

#endif
