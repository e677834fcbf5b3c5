/* A move as a box of units, before it is divided into tiles. */
#ifndef CUDA_COPY_BOX_H
#define CUDA_COPY_BOX_H

#include "copy/direct/gpu_copy.h"
#include "cuda/copy/work.h"

/* Loops of a move, plus its run as a loop, plus one for a split dimension. */
#define COPY_BOX_DIMS (STRIDED_MAX_LOOPS + 2)

/* Slowest dimension first, in units of `width` bytes. */
typedef struct copy_box {
    char *to;
    const char *from;
    char *scales; /* if elements and scales are written together */
    uint32_t width;
    uint8_t cast;
    int64_t to_step, from_step;
    uint64_t run_bytes; /* of copy_move */
    int count;
    struct copy_box_dim {
        uint64_t extent;
        int64_t to, from, scale;
    } dims[COPY_BOX_DIMS];
} copy_box;

static inline uint64_t copy_box_magnitude(int64_t stride)
{
    return stride < 0 ? 0 - (uint64_t)stride : (uint64_t)stride;
}

#endif
