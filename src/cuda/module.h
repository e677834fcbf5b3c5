/* The tables of the module's functions that only module.c names. */
#ifndef CUDA_MODULE_H
#define CUDA_MODULE_H

#include <banyan/copy.h>

#include "copy/direct/gpu_copy.h"
#include "copy/pipeline/gpu_pipeline.h"
#include "publish/delta/device.h"

/* Strided moves between GPUs. */
extern const copy_gpu_copy_ops cuda_gpu_copy_ops;

/* The copy backend "nccl": grouped sends and receives through NCCL, for comparison and for links
 * that only NCCL drives. Tensors that are not dense are packed and unpacked in device memory. The
 * direct backend synchronizes partners and moves data from a rank to itself. */
extern const banyan_copy_backend cuda_nccl_backend;

extern const copy_gpu_pipeline_ops cuda_gpu_pipeline_ops;

/* Changes of published tensors. */
extern const delta_device_ops cuda_delta_ops;

#endif
