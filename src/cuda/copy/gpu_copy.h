/* Strided moves between GPUs: the module's table. */
#ifndef CUDA_COPY_GPU_COPY_H
#define CUDA_COPY_GPU_COPY_H

#include "copy/direct/gpu_copy.h"

extern const copy_gpu_copy_ops cuda_gpu_copy_ops;

#endif
