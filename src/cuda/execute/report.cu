#include "cuda/runtime/device.cuh"

#include <banyan/device/access.cuh>

#include "cuda/execute/report.h"

static __global__ void tell(const __grid_constant__ tell_args args)
{
    if (banyan_device_load<uint32_t>(args.broken))
        return;
    for (uint64_t i = threadIdx.x; i < args.count; i += blockDim.x)
        banyan_device_add_release(args.counters[i], 1);
}

const void *tell_kernel(void)
{
    return DEVICE_KERNEL(tell, tell_args);
}
