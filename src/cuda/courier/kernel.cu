#include "cuda/courier/kernel.h"

#include "cuda/copy/memory.cuh"
#include "cuda/device.cuh"

#define STOP_CHECK_NS 500000

static __device__ void fail(const courier_args *run, uint32_t verdict, uint64_t waited_ns)
{
    copy_report *report = run->report;
    if (banyan_device_claim(&run->shared->failed) != 0)
        return;
    report->peer = run->peer;
    report->finishing = run->task == COURIER_ACCEPT;
    report->waited_ns = waited_ns;
    banyan_device_publish(&report->verdict, verdict);
}

/* False when the run has failed, here or elsewhere on this device. */
static __device__ bool wait_for(const courier_args *run, uint64_t wanted)
{
    uint64_t begun = banyan_device_time_ns(), checked = begun;
    while (banyan_device_load<uint32_t>(&run->shared->failed) == 0) {
        if (banyan_device_load_acquire(run->word) >= wanted)
            return true;
        rest();
        uint64_t now = banyan_device_time_ns();
        if (now - begun > run->timeout_ns)
            fail(run, COURIER_VERDICT_LATE, now - begun);
        if (now - checked > STOP_CHECK_NS) {
            checked = now;
            if (banyan_device_load<uint32_t>(&run->report->stop) != 0)
                fail(run, COURIER_VERDICT_STOPPED, now - begun);
        }
    }
    return false;
}

static __device__ void seal(const courier_args *run)
{
    uint64_t number = *run->count + 1;
    bool granted = wait_for(run, number);
    if (granted)
        *run->count = number;
    run->seal->number = granted ? number : 0;
    run->seal->bytes = run->bytes;
}

static __device__ void accept(const courier_args *run)
{
    uint64_t number = *run->count + 1;
    if (!wait_for(run, number))
        return;
    *run->count = number;
    if (banyan_device_load_acquire(&run->seal->number) != number ||
        banyan_device_load_acquire(&run->seal->bytes) != run->bytes)
        fail(run, COURIER_VERDICT_SPOILT, 0);
}

static __device__ void tell(const courier_args *run)
{
    uint64_t number = *run->count + 1;
    *run->count = number;
    banyan_device_store_release(run->their_word, number);
}

static __global__ void courier_kernel(const __grid_constant__ courier_args args)
{
    if (args.task == COURIER_SEAL)
        seal(&args);
    else if (args.task == COURIER_ACCEPT)
        accept(&args);
    else
        tell(&args);
}

const void *courier_kernel_symbol(void)
{
    return DEVICE_KERNEL(courier_kernel, courier_args);
}
