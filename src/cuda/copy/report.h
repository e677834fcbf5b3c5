/* Words in host memory that a device accesses while it runs, and the report that its kernels
 * write. */
#ifndef CUDA_COPY_REPORT_H
#define CUDA_COPY_REPORT_H

#include <stddef.h>

#include "copy/service/device_report.h"
#include "cuda/copy/work.h"

/* Allocate zeroed words; the device is entered. `there` is the device address. */
banyan_status shared_words_open(int device, size_t bytes, void **here, void **there);
void shared_words_close(void *here); /* the device is entered; ignores NULL */

/* Read the result of the runs that have ended so far. */
void report_read(const copy_report *here, device_report *report);

#endif
