/* Signals after copies: a separate kernel, in the order of their stream. */
#ifndef CUDA_EXECUTE_REPORT_H
#define CUDA_EXECUTE_REPORT_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TELL_THREADS 128

/* One thread block. After a kernel has given up, later stages send no signals. */
typedef struct tell_args {
    uint64_t *const *counters; /* each is incremented by 1 */
    uint64_t count;
    const uint32_t *broken; /* as in kernel_args */
} tell_args;

const void *tell_kernel(void);

#ifdef __cplusplus
}
#endif

#endif
