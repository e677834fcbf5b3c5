/* A kernel's report to the host of a long wait: for the log, and for peers that ask for whom this
 * rank waits. The kernel itself observes deadlines. */
#ifndef CUDA_RUNTIME_WAITS_H
#define CUDA_RUNTIME_WAITS_H

#include <stdint.h>

/* Pinned; zeroed. Several threads write it as they wait, so words of two waits may be mixed. */
typedef struct device_waits {
    uint64_t what[3];   /* the object of the wait, as the kernel and its host define it */
    uint64_t waited_ns; /* changes with each report */
} device_waits;

#endif
