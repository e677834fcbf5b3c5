/* A kernel's report to the host of a wait that lasts: for the log, and for peers that ask for whom
 * this rank waits. Deadlines are the kernel's own affair. */
#ifndef CUDA_RUNTIME_WAITS_H
#define CUDA_RUNTIME_WAITS_H

#include <stdint.h>

/* Pinned; zeroed. Several threads write it as they wait, so that words of two waits may mix. */
typedef struct device_waits {
    uint64_t what[3];   /* for what: as the kernel and its host agree */
    uint64_t waited_ns; /* another number each time */
} device_waits;

#endif
