/* Launches that begin while the one before them in their stream still runs: they fetch what they
 * need, then wait for it (begin.cuh). */
#ifndef CUDA_RUNTIME_BEGIN_H
#define CUDA_RUNTIME_BEGIN_H

#include <stdbool.h>

/* Unless BANYAN_EARLY_LAUNCH=0, or driver or device are too old. */
bool begin_can_be_early(int device);

#endif
