#include "cuda/pipeline/kernel.h"

#include <banyan/device/channel.cuh>

#include "cuda/copy/waiting.cuh"
#include "cuda/runtime/device.cuh"

static __device__ waiter waiter_of(const gpu_pipeline_args *run)
{
    return waiter{run->shared, run->reports, run->timeout_ns,
                  report_what((uint32_t)run->peer, run->task == PIPELINE_ACCEPT)};
}

static __device__ void stamp_slot(const gpu_pipeline_args *run)
{
    uint64_t number = *run->count + 1;
    waiter of = waiter_of(run);
    bool granted = wait_for_count(&of, run->word, number);
    if (granted)
        *run->count = number;
    run->check->number = granted ? number : 0;
    run->check->bytes = run->bytes;
}

static __device__ void accept_slot(const gpu_pipeline_args *run)
{
    uint64_t number = *run->count + 1;
    waiter of = waiter_of(run);
    if (!wait_for_count(&of, run->word, number))
        return;
    *run->count = number;
    if (banyan_device_load_acquire(&run->check->number) != number ||
        banyan_device_load_acquire(&run->check->bytes) != run->bytes)
        report_failure(&run->shared->failed, run->reports, DEVICE_SPOILT, 0, of.what);
}

static __device__ void signal_peer(const gpu_pipeline_args *run)
{
    uint64_t number = *run->count + 1;
    *run->count = number;
    banyan_device_store_release(run->their_word, number);
}

/* A run that has failed posts its requests, too: they carry no valid sequence check. */
static __device__ void post_request(const gpu_pipeline_args *run)
{
    banyan_port_queue *queue = run->queue;
    waiter of = waiter_of(run);
    uint64_t number = banyan_device_take(&queue->posted, 1);
    if (number >= queue->capacity + banyan_device_load_acquire(queue->done) &&
        !wait_for_count(&of, queue->done, number - queue->capacity + 1))
        return;
    banyan_device_post_at(queue, number, &run->request);
    if (run->request.bytes > 0)
        (void)wait_for_count(&of, queue->done, number + 1);
}

static __global__ void gpu_pipeline_kernel(const __grid_constant__ gpu_pipeline_args args)
{
    if (args.task == PIPELINE_STAMP)
        stamp_slot(&args);
    else if (args.task == PIPELINE_ACCEPT)
        accept_slot(&args);
    else if (args.task == PIPELINE_SIGNAL)
        signal_peer(&args);
    else
        post_request(&args);
}

const void *gpu_pipeline_kernel_symbol(void)
{
    return DEVICE_KERNEL(gpu_pipeline_kernel, gpu_pipeline_args);
}
