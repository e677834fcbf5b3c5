/* The words by which the host and the waiting kernels of an engine know of each other. */
#ifndef CUDA_RUNTIME_REPORT_H
#define CUDA_RUNTIME_REPORT_H

#include <stdbool.h>

#include "core/device_report.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Pinned; zeroed. */
typedef struct report_words {
    uint32_t stop; /* first, so that kernels add nothing; the host sets it to end waits */
    uint32_t unused;
    device_report failed; /* the first wait that failed; its verdict is written last, and stays */
    /* A long wait, for the log, and for peers that ask for whom this rank waits. Several threads
     * write it as they wait, so words of two waits may be mixed. Each report changes waited_ns. */
    device_report lasting;
} report_words;

/* End all waits: kernels have no other way to learn that the world has ended. */
void report_stop(report_words *words);
bool report_has_failed(const report_words *words);
/* Read how the runs went that have ended so far. */
void report_read(const report_words *words, device_report *report);

#ifdef __cplusplus
}
#endif

#endif
