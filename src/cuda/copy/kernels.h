/* The two kernels that move elements, on a device. */
#ifndef CUDA_COPY_KERNELS_H
#define CUDA_COPY_KERNELS_H

#include "cuda/copy/work.h"
#include "cuda/driver.h"

typedef struct copy_kernels {
    CUfunction moves,
        converts;     /* the second also converts elements, and moves runs at any address */
    uint32_t threads; /* of a thread block, for both */
    uint32_t room;    /* thread blocks of either that run at once */
} copy_kernels;

/* The device's context is entered. UNSUPPORTED where the device holds no thread block. */
banyan_status copy_kernels_find(int device, copy_kernels *found);

#endif
