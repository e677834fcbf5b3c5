/* Launches that begin while the previous one in their stream still runs: they fetch their program,
 * then wait for it (begin.cuh). */
#ifndef CUDA_RUNTIME_BEGIN_H
#define CUDA_RUNTIME_BEGIN_H

#include <stdbool.h>

/* False with BANYAN_EARLY_LAUNCH=0, or with an old driver or device. */
bool begin_can_be_early(int device);

#endif
