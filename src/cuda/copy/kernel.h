#ifndef CUDA_COPY_KERNEL_H
#define CUDA_COPY_KERNEL_H

#include <stdbool.h>

#include "cuda/copy/work.h"

#ifdef __cplusplus
extern "C" {
#endif

/* For driver_kernel: one of two kernels; the second also converts elements. The kernel takes
 * copy_args, at most COPY_THREADS_MAX threads per block, and no shared memory. */
const void *copy_kernel_symbol(bool converts);

#ifdef __cplusplus
}
#endif

#endif
