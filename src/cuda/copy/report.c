#include "cuda/copy/report.h"

#include <string.h>

#include "cuda/driver.h"

_Static_assert(COPY_LATE == DEVICE_LATE && COPY_STOPPED == DEVICE_STOPPED &&
                   COPY_SPOILT == DEVICE_SPOILT,
               "kernels write what the host reads");

banyan_status shared_words_open(int device, size_t bytes, void **here, void **there)
{
    CUdeviceptr address;
    void *memory;
    RETURN_IF_FAILED(DRIVER(device, cuMemHostAlloc, &memory, bytes,
                            CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP));
    memset(memory, 0, bytes);
    banyan_status status = DRIVER(device, cuMemHostGetDevicePointer, &address, memory, 0);
    if (status != BANYAN_OK) {
        driver.cuMemFreeHost(memory);
        return status;
    }
    *here = memory;
    *there = (void *)(uintptr_t)address;
    return BANYAN_OK;
}

void shared_words_close(void *here)
{
    if (here)
        driver.cuMemFreeHost(here);
}

void report_read(const copy_report *here, device_report *report)
{
    uint32_t verdict = __atomic_load_n(&here->verdict, __ATOMIC_ACQUIRE);
    *report = (device_report){.verdict = (device_verdict)verdict};
    if (report->verdict == DEVICE_FINE)
        return;
    report->peer = here->peer;
    report->for_data = here->for_data != 0;
    report->waited_ns = here->waited_ns;
}
