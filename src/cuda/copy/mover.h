/* Strided moves between GPUs: the module's table. */
#ifndef CUDA_COPY_MOVER_H
#define CUDA_COPY_MOVER_H

#include "copy/mover.h"

extern const copy_mover_ops cuda_mover_ops;

#endif
