#include "cuda/mixed/gather.cuh"

#define GATHER_DEFINE_KERNEL(name, ...)                                                            \
    static __global__ void __launch_bounds__(MIXED_THREADS_MAX)                                    \
        name(const __grid_constant__ mixed_gather_args args)                                       \
    {                                                                                              \
        __VA_ARGS__(&args);                                                                        \
    }

GATHER_DEFINE_KERNEL(mixed_packets, packets<false>)
GATHER_DEFINE_KERNEL(mixed_packets_multicast, packets<true>)
GATHER_DEFINE_KERNEL(mixed_chunks, chunks<false, false>)
GATHER_DEFINE_KERNEL(mixed_chunks_any, chunks<true, false>)
GATHER_DEFINE_KERNEL(mixed_chunks_multicast, chunks<false, true>)
GATHER_DEFINE_KERNEL(mixed_chunks_multicast_any, chunks<true, true>)
GATHER_DEFINE_KERNEL(mixed_chunks_once, chunks_once<false, false>)
GATHER_DEFINE_KERNEL(mixed_chunks_once_any, chunks_once<true, false>)
GATHER_DEFINE_KERNEL(mixed_chunks_once_multicast, chunks_once<false, true>)
GATHER_DEFINE_KERNEL(mixed_chunks_once_multicast_any, chunks_once<true, true>)

static __global__ void __launch_bounds__(MIXED_THREADS_MAX)
    mixed_clear(const __grid_constant__ mixed_clear_args args)
{
    uint64_t apart = (uint64_t)run_threads() * MIXED_UNIT;
    BANYAN_DEVICE_LOOP
    for (uint64_t at = (uint64_t)run_thread() * MIXED_UNIT; at < args.bytes; at += apart)
        unit_clear(args.at + at, args.nothing);
}

const void *mixed_kernel_untyped(mixed_kernel kernel)
{
    switch (kernel) {
    case MIXED_PACKETS:
        return DEVICE_KERNEL(mixed_packets, mixed_gather_args);
    case MIXED_PACKETS_MULTICAST:
        return DEVICE_KERNEL(mixed_packets_multicast, mixed_gather_args);
    case MIXED_CHUNKS:
        return DEVICE_KERNEL(mixed_chunks, mixed_gather_args);
    case MIXED_CHUNKS_MULTICAST:
        return DEVICE_KERNEL(mixed_chunks_multicast, mixed_gather_args);
    case MIXED_CHUNKS_ANY:
        return DEVICE_KERNEL(mixed_chunks_any, mixed_gather_args);
    case MIXED_CHUNKS_MULTICAST_ANY:
        return DEVICE_KERNEL(mixed_chunks_multicast_any, mixed_gather_args);
    case MIXED_CHUNKS_ONCE:
        return DEVICE_KERNEL(mixed_chunks_once, mixed_gather_args);
    case MIXED_CHUNKS_ONCE_ANY:
        return DEVICE_KERNEL(mixed_chunks_once_any, mixed_gather_args);
    case MIXED_CHUNKS_ONCE_MULTICAST:
        return DEVICE_KERNEL(mixed_chunks_once_multicast, mixed_gather_args);
    case MIXED_CHUNKS_ONCE_MULTICAST_ANY:
        return DEVICE_KERNEL(mixed_chunks_once_multicast_any, mixed_gather_args);
    default:
        return DEVICE_KERNEL(mixed_clear, mixed_clear_args);
    }
}
