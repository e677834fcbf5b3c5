#include "cuda/pipeline/kernel.h"

#include "cuda/copy/waiting.cuh"
#include "cuda/runtime/device.cuh"

static __device__ waiter waiter_of(const gpu_pipeline_args *run)
{
    return waiter{run->shared, run->report, run->timeout_ns, run->peer,
                  run->task == COURIER_ACCEPT};
}

static __device__ void seal(const gpu_pipeline_args *run)
{
    uint64_t number = *run->count + 1;
    waiter of = waiter_of(run);
    bool granted = wait_for_count(&of, run->word, number);
    if (granted)
        *run->count = number;
    run->seal->number = granted ? number : 0;
    run->seal->bytes = run->bytes;
}

static __device__ void accept(const gpu_pipeline_args *run)
{
    uint64_t number = *run->count + 1;
    waiter of = waiter_of(run);
    if (!wait_for_count(&of, run->word, number))
        return;
    *run->count = number;
    if (banyan_device_load_acquire(&run->seal->number) != number ||
        banyan_device_load_acquire(&run->seal->bytes) != run->bytes)
        report_failure(&of, COPY_SPOILT, 0);
}

static __device__ void tell(const gpu_pipeline_args *run)
{
    uint64_t number = *run->count + 1;
    *run->count = number;
    banyan_device_store_release(run->their_word, number);
}

static __global__ void gpu_pipeline_kernel(const __grid_constant__ gpu_pipeline_args args)
{
    if (args.task == COURIER_SEAL)
        seal(&args);
    else if (args.task == COURIER_ACCEPT)
        accept(&args);
    else
        tell(&args);
}

const void *gpu_pipeline_kernel_symbol(void)
{
    return DEVICE_KERNEL(gpu_pipeline_kernel, gpu_pipeline_args);
}
