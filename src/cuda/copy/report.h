/* The report that kernels write into host memory. */
#ifndef CUDA_COPY_REPORT_H
#define CUDA_COPY_REPORT_H

#include "copy/service/device_report.h"
#include "cuda/copy/work.h"

/* Read the result of the runs that have ended so far. */
void report_read(const copy_report *here, device_report *report);

#endif
