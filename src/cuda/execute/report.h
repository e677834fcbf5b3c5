/* Signals behind copies: a kernel of its own, in the order of their stream. */
#ifndef CUDA_EXECUTE_REPORT_H
#define CUDA_EXECUTE_REPORT_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TELL_THREADS 128

/* One thread block. Nobody is told of what comes behind a kernel that has given up. */
typedef struct tell_args {
    uint64_t *const *counters; /* 1 is added to each */
    uint64_t count;
    const uint32_t *broken; /* as kernel_args has it */
} tell_args;

const void *tell_kernel(void);

#ifdef __cplusplus
}
#endif

#endif
