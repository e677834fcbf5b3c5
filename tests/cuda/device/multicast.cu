/* Also compiled for a GPU, but never run there: this checks the names of the instructions. */
#include "multicast.h"

#include <banyan/device/multicast.cuh>

template <typename Element> BANYAN_DEVICE void call_type(const multicast_call *call)
{
    uint32_t thread = blockIdx.x * blockDim.x + threadIdx.x, threads = gridDim.x * blockDim.x;
    switch (call->kind) {
    case MULTICAST_STORE_RELEASE:
        if (thread == 0)
            banyan_device_multicast_store_release((uint64_t *)(void *)call->to, call->word);
        return;
    case MULTICAST_STORE:
        return banyan_device_multicast_store(call->to, call->from, call->bytes, thread, threads);
    case MULTICAST_LOAD:
        return banyan_device_multicast_load<Element>(call->to, call->from, call->bytes, thread,
                                                     threads);
    case MULTICAST_LOAD_STORE:
        return banyan_device_multicast_load_store<Element>(call->to, call->from, call->bytes,
                                                           thread, threads);
    default:
        return banyan_device_multicast_add<Element>(call->to, call->from, call->bytes, threadIdx.x,
                                                    blockDim.x);
    }
}

__global__ void call_multicast(const __grid_constant__ multicast_call call)
{
    switch (call.type) {
    case 0:
        return call_type<banyan_device_f32>(&call);
    case 1:
        return call_type<banyan_device_f16>(&call);
    default:
        return call_type<banyan_device_bf16>(&call);
    }
}

#ifndef __CUDACC__

extern "C" {
#include "fibers.h"
}

static void call_emulated(const void *argument)
{
    call_multicast(*(const multicast_call *)argument);
}

void multicast_run(const multicast_call *call, uint32_t threads)
{
    fibers_run({2, 1, 1}, {threads, 1, 1}, 64, call_emulated, call, 7);
}

#endif
