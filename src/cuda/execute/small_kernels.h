/* Kernels beside those of plans. */
#ifndef CUDA_EXECUTE_SMALL_KERNELS_H
#define CUDA_EXECUTE_SMALL_KERNELS_H

#include <stdint.h>

#include "execute/device/engine.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Readings of the device's clock, for comparison with the host's. */
#define CLOCK_ROUNDS 32

/* One thread answers requests 1, 2, …, CLOCK_ROUNDS; all memory is pinned. */
typedef struct clock_args {
    uint64_t *asked;    /* number of the latest request */
    uint64_t *answered; /* number of the request that `time_ns` answers */
    uint64_t *time_ns;
    uint64_t timeout_ns;
} clock_args;

const void *clock_kernel(void);

/* Signals after copies, in the order of their stream. */
#define SIGNAL_THREADS 128

/* One thread block. After a kernel has given up, later stages send no signals. */
typedef struct signal_args {
    uint64_t *const *counters; /* each is incremented by 1 */
    uint64_t count;
    const uint32_t *broken; /* as in kernel_args */
} signal_args;

const void *signal_kernel(void);

/* Elements times or divided by a number, as engine_scaling has it. Any number of blocks. */
#define SCALE_THREADS 256
#define SCALE_BLOCKS_MOST 1024

typedef struct scale_args {
    char *to;
    const char *from;
    uint64_t bytes;
    engine_scaling by;
} scale_args;

/* `dtype`: a type that reductions support. */
const void *scale_kernel(DLDataType dtype);

#ifdef __cplusplus
}
#endif

#endif
