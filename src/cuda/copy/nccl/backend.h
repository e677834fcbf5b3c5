/* The copy backend "nccl": grouped sends and receives through NCCL, for comparison and for links
 * that only NCCL drives. Tensors that are not dense are packed and unpacked in device memory. The
 * direct backend synchronizes partners and moves data from a rank to itself. */
#ifndef CUDA_COPY_NCCL_BACKEND_H
#define CUDA_COPY_NCCL_BACKEND_H

#include <banyan/copy.h>

extern const banyan_copy_backend cuda_nccl_backend;

#endif
