/* Reports long waits to the host. */
#ifndef CUDA_RUNTIME_WAITS_CUH
#define CUDA_RUNTIME_WAITS_CUH

#include <banyan/device/wait.cuh>

#include "cuda/runtime/waits.h"

/* Shorter waits are not reported. */
#define WAITS_REPORTED_AFTER_NS UINT64_C(20000000)

BANYAN_DEVICE void waits_store(uint64_t *to, uint64_t value)
{
    banyan_device_store_packet(to, make_uint2((uint32_t)value, (uint32_t)(value >> 32)));
}

/* True if it is this warp's turn to report its wait: for 1 ms in every 64 ms. A kernel that takes
 * turns on its device with those of other processes is not there in every such millisecond. */
BANYAN_DEVICE bool waits_turn(const banyan_device_wait *wait, uint64_t *waited_ns)
{
    uint64_t now = banyan_device_time_ns();
    uint32_t warp = (blockIdx.x * blockDim.x + threadIdx.x) / BANYAN_DEVICE_WARP;
    *waited_ns = now - (wait->since & ~(uint64_t)3);
    return *waited_ns > WAITS_REPORTED_AFTER_NS && (((uint32_t)(now >> 20) ^ warp) & 63) == 0;
}

#endif
