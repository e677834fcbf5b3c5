/* Words in memory of the host that a device reads and writes while it runs, and the report that
 * kernels leave there. */
#ifndef CUDA_COPY_REPORT_H
#define CUDA_COPY_REPORT_H

#include <stddef.h>

#include "copy/service/device_report.h"
#include "cuda/copy/work.h"

/* Zeroed memory, and its address on the device, which is entered. */
banyan_status shared_words_open(int device, size_t bytes, void **here, void **there);
void shared_words_close(void *here); /* of an entered device; NULL is ignored */

/* How the runs went that have ended so far. */
void report_read(const copy_report *here, device_report *report);

#endif
