/* What the device's clock says, beside the host's. */
#ifndef CUDA_EXECUTE_CLOCK_H
#define CUDA_EXECUTE_CLOCK_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CLOCK_ROUNDS 32

/* One thread answers questions 1, 2, …, CLOCK_ROUNDS; all of it lies in pinned memory. */
typedef struct clock_args {
    uint64_t *asked;    /* the latest question */
    uint64_t *answered; /* the latest that `time_ns` answers */
    uint64_t *time_ns;
    uint64_t timeout_ns;
} clock_args;

const void *clock_kernel(void);

#ifdef __cplusplus
}
#endif

#endif
