#ifndef CUDA_COPY_KERNEL_H
#define CUDA_COPY_KERNEL_H

#include "cuda/copy/work.h"

#ifdef __cplusplus
extern "C" {
#endif

/* For driver_kernel; it takes copy_args, at most COPY_THREADS_MAX threads a block, and no shared
 * memory. */
const void *copy_kernel_symbol(void);

#ifdef __cplusplus
}
#endif

#endif
