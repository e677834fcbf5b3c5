/* Waits for a peer's counter, until the deadline or the host's stop word, and reports failures. */
#ifndef CUDA_COPY_WAITING_CUH
#define CUDA_COPY_WAITING_CUH

#include "cuda/copy/memory.cuh"
#include "cuda/copy/work.h"
#include "cuda/runtime/waits.cuh"

#define STOP_CHECK_NS 500000
#define REPORT_NS 100000000

/* The wait of a thread, and its object. */
typedef struct waiter {
    copy_shared *shared;
    copy_report *report;
    uint64_t timeout_ns;
    int32_t peer;
    bool for_data;
} waiter;

/* Only the first report counts. */
static __device__ __noinline__ void report_failure(const waiter *of, uint32_t verdict,
                                                   uint64_t waited_ns)
{
    copy_report *report = of->report;
    if (banyan_device_claim(&of->shared->failed) != 0)
        return;
    report->peer = of->peer;
    report->for_data = of->for_data;
    report->waited_ns = waited_ns;
    banyan_device_publish(&report->verdict, verdict);
}

/* False if the run has failed, here or in another thread of this device. */
static __device__ __noinline__ bool wait_for_count(const waiter *of, const uint64_t *count,
                                                   uint64_t wanted)
{
    uint64_t begun = banyan_device_time_ns(), checked = begun, reported = begun;
    while (banyan_device_load<uint32_t>(&of->shared->failed) == 0) {
        if (banyan_device_load_acquire(count) >= wanted)
            return true;
        rest();
        uint64_t now = banyan_device_time_ns();
        if (now - begun > of->timeout_ns)
            report_failure(of, COPY_LATE, now - begun);
        if (now - reported > REPORT_NS) {
            reported = now;
            waits_store(&of->report->waits.what[0],
                        (uint64_t)of->for_data << 32 | (uint32_t)(of->peer + 1));
            waits_store(&of->report->waits.waited_ns, now - begun);
        }
        if (now - checked > STOP_CHECK_NS) {
            checked = now;
            if (banyan_device_load<uint32_t>(&of->report->stop) != 0)
                report_failure(of, COPY_STOPPED, now - begun);
        }
    }
    return false;
}

#endif
