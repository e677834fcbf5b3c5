/* Readings of the device's clock, for comparison with the host's. */
#ifndef CUDA_EXECUTE_CLOCK_H
#define CUDA_EXECUTE_CLOCK_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CLOCK_ROUNDS 32

/* One thread answers requests 1, 2, …, CLOCK_ROUNDS; all memory is pinned. */
typedef struct clock_args {
    uint64_t *asked;    /* number of the latest request */
    uint64_t *answered; /* number of the request that `time_ns` answers */
    uint64_t *time_ns;
    uint64_t timeout_ns;
} clock_args;

const void *clock_kernel(void);

#ifdef __cplusplus
}
#endif

#endif
