/* Reports to the host: of the wait with which a run fails, and of long waits. */
#ifndef CUDA_RUNTIME_REPORT_CUH
#define CUDA_RUNTIME_REPORT_CUH

#include <banyan/device/wait.cuh>

#include "cuda/runtime/report.h"

static_assert(DEVICE_LATE == (int)BANYAN_DEVICE_LATE && DEVICE_STOPPED == (int)BANYAN_DEVICE_STOPPED,
              "the end of a wait is a verdict");

/* Shorter waits are not reported. */
#define REPORT_AFTER_NS UINT64_C(20000000)

/* what[0] of a wait for a rank of the world. */
BANYAN_DEVICE uint64_t report_what(uint32_t rank, uint32_t own)
{
    return (uint64_t)own << 32 | (rank + 1);
}

/* Report that a wait has failed. Only the first report counts: false for others. `failed`: the
 * device's own word for it, which stays set. `more`: what[1] and what[2]; NULL: not used. */
BANYAN_DEVICE bool report_failure(uint32_t *failed, report_words *words, uint32_t verdict,
                                  uint64_t waited_ns, uint64_t what, const uint64_t *more = NULL)
{
    if (banyan_device_claim(failed) != 0)
        return false;
    device_report *report = &words->failed;
    report->what[0] = what;
    for (int i = 0; more && i < 2; i++)
        report->what[1 + i] = more[i];
    report->waited_ns = waited_ns;
    banyan_device_publish(&report->verdict, verdict);
    return true;
}

BANYAN_DEVICE void report_store(uint64_t *to, uint64_t value)
{
    banyan_device_store_packet(to, make_uint2((uint32_t)value, (uint32_t)(value >> 32)));
}

/* Report a wait that lasts, if it is long, and if it is this warp's turn: for 1 ms in every 64 ms.
 * A kernel that takes turns on its device with those of other processes is not there in every such
 * millisecond. Call it between readings of the clock. */
BANYAN_DEVICE void report_lasting(report_words *words, const banyan_device_wait *wait,
                                  uint64_t what, const uint64_t *more = NULL)
{
    uint64_t now = banyan_device_time_ns(), waited_ns = now - (wait->since & ~(uint64_t)3);
    uint32_t warp = (blockIdx.x * blockDim.x + threadIdx.x) / BANYAN_DEVICE_WARP;
    if (waited_ns <= REPORT_AFTER_NS || (((uint32_t)(now >> 20) ^ warp) & 63) != 0)
        return;
    device_report *report = &words->lasting;
    report_store(&report->what[0], what);
    for (int i = 0; more && i < 2; i++)
        report_store(&report->what[1 + i], more[i]);
    report_store(&report->waited_ns, waited_ns);
}

#endif
