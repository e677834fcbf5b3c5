#include "cuda/execute/small_kernels.h"

#include <banyan/device/wait.cuh>

#include "cuda/runtime/device.cuh"

static __global__ void answer_clock(const __grid_constant__ clock_args args)
{
    banyan_device_limits limits = {args.timeout_ns, {nullptr, nullptr}};
    for (uint64_t question = 1; question <= CLOCK_ROUNDS; question++) {
        banyan_device_wait wait = {};
        while (banyan_device_load_acquire(args.asked) < question) {
            if (!banyan_device_wait_on(&limits, &wait))
                return;
        }
        *args.time_ns = banyan_device_time_ns();
        banyan_device_store_release(args.answered, question);
    }
}

const void *clock_kernel(void)
{
    return DEVICE_KERNEL(answer_clock, clock_args);
}

static __global__ void add_signals(const __grid_constant__ signal_args args)
{
    if (banyan_device_load<uint32_t>(args.broken))
        return;
    for (uint64_t i = threadIdx.x; i < args.count; i += blockDim.x)
        banyan_device_add_release(args.counters[i], 1);
}

const void *signal_kernel(void)
{
    return DEVICE_KERNEL(add_signals, signal_args);
}
