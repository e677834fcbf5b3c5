/* Lists of moves on the device; one launch of the copy kernel performs a list. */
#ifndef CUDA_PIPELINE_COPIES_H
#define CUDA_PIPELINE_COPIES_H

#include "cuda/pipeline/pipeline.h"

/* Zeroed, it is empty. */
typedef struct gpu_pipeline_copies {
    const gpu_pipeline *gpu_pipeline;
    CUdeviceptr memory; /* all arrays of args */
    copy_args args;     /* of list 0 */
    uint32_t blocks;
} gpu_pipeline_copies;

/* The arguments, except for the GPU pipeline, may be freed afterwards. Local. */
banyan_status gpu_pipeline_copies_make(const gpu_pipeline *owner, const direct_moves *const *lists,
                                       size_t count, gpu_pipeline_copies *copies);
/* The device's context is entered, and no launch is in progress. */
void gpu_pipeline_copies_free(gpu_pipeline_copies *copies);

/* Queue the moves of one list. The device's context is entered. */
banyan_status gpu_pipeline_copies_launch(const gpu_pipeline_copies *copies, size_t list,
                                         CUstream stream);

#endif
