/* Kernels between nodes whose thread blocks put by themselves. They are linked with NVSHMEM's
 * device library into a separate image, so that the module loads without NVSHMEM. */
#include <nvshmem.h>
#include <nvshmemx.h>

#include "cuda/mixed/nodes/nodes.cuh"

/* Data come from a slot that the block's threads have just written, followed by a barrier.
 * NVSHMEM's calls begin with a barrier of their own and, if another agent than these threads reads
 * the slot, a fence. */
struct nodes_puts {
    static const bool ARE_THERE = true;

    BANYAN_DEVICE_MEMBER static void put(bool by_warp, char *to, const char *from, uint64_t bytes,
                                         uint64_t *flag, uint64_t value, uint32_t pe)
    {
        if (by_warp)
            nvshmemx_putmem_signal_nbi_warp(to, from, bytes, flag, value, NVSHMEM_SIGNAL_SET,
                                            (int)pe);
        else
            nvshmemx_putmem_signal_nbi_block(to, from, bytes, flag, value, NVSHMEM_SIGNAL_SET,
                                             (int)pe);
    }

    /* The call does not wait any more, but some networks need it before data that precede a signal
     * can be read. */
    BANYAN_DEVICE_MEMBER static void settle(uint64_t *flag, uint64_t value)
    {
        nvshmem_uint64_wait_until(flag, NVSHMEM_CMP_EQ, value);
    }
};

#define NODES_DEFINE_KERNEL(name, type, any, multicast)                                            \
    extern "C" __global__ void __launch_bounds__(MIXED_THREADS_MAX)                                \
        name(const __grid_constant__ nodes_args args)                                              \
    {                                                                                              \
        nodes<banyan_device_##type, any, multicast, nodes_puts>(&args);                            \
    }

#define NODES_DEFINE_KERNELS(type)                                                                 \
    NODES_DEFINE_KERNEL(mixed_nodes_puts_##type, type, false, false)                               \
    NODES_DEFINE_KERNEL(mixed_nodes_puts_any_##type, type, true, false)                            \
    NODES_DEFINE_KERNEL(mixed_nodes_puts_multicast_##type, type, false, true)                      \
    NODES_DEFINE_KERNEL(mixed_nodes_puts_multicast_any_##type, type, true, true)

NODES_DEFINE_KERNELS(bf16)
NODES_DEFINE_KERNELS(f16)
NODES_DEFINE_KERNELS(f32)
