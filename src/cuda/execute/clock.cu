#include "cuda/runtime/device.cuh"

#include <banyan/device/wait.cuh>

#include "cuda/execute/clock.h"

static __global__ void answer(const __grid_constant__ clock_args args)
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
    return DEVICE_KERNEL(answer, clock_args);
}
