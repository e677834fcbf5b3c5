/* Waits for a peer's counter, until the deadline or the host's stop word. */
#ifndef CUDA_COPY_WAITING_CUH
#define CUDA_COPY_WAITING_CUH

#include "cuda/copy/memory.cuh"
#include "cuda/copy/work.h"
#include "cuda/runtime/report.cuh"

/* The wait of a thread, and its object. */
typedef struct waiter {
    copy_shared *shared;
    report_words *reports;
    uint64_t timeout_ns;
    uint64_t what;
} waiter;

/* False if the run has failed, here or in another thread of this device. */
static __device__ __noinline__ bool wait_for_count(const waiter *of, const uint64_t *count,
                                                   uint64_t wanted)
{
    banyan_device_limits limits = {of->timeout_ns, {&of->shared->failed, &of->reports->stop}};
    banyan_device_wait wait = {};
    while (banyan_device_load<uint32_t>(&of->shared->failed) == 0) {
        if (banyan_device_load_acquire(count) >= wanted)
            return true;
        rest();
        if (!banyan_device_wait_on(&limits, &wait))
            report_failure(&of->shared->failed, of->reports, banyan_device_wait_end(&wait),
                           banyan_device_waited_ns(&wait), of->what);
        else if (wait.looks % BANYAN_DEVICE_LOOKS == 0)
            report_lasting(of->reports, &wait, of->what);
    }
    return false;
}

#endif
