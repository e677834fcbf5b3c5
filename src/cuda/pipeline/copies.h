/* Lists of moves on the device, each of which a launch of the copy kernel moves. */
#ifndef CUDA_PIPELINE_COPIES_H
#define CUDA_PIPELINE_COPIES_H

#include "cuda/pipeline/pipeline.h"

/* Zeroed is empty. */
typedef struct courier_copies {
    const courier *courier;
    CUdeviceptr memory; /* all arrays of args */
    copy_args args;     /* of list 0 */
    uint32_t blocks;
} courier_copies;

/* Nothing that is passed is needed afterwards, but for the courier. Local. */
banyan_status courier_copies_make(const courier *owner, const direct_moves *const *lists,
                                  size_t count, courier_copies *copies);
/* The device's context is entered, and no launch is under way. */
void courier_copies_free(courier_copies *copies);

/* Queue the moves of one list. The device's context is entered. */
banyan_status courier_copies_launch(const courier_copies *copies, size_t list, CUstream stream);

#endif
