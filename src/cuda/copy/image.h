/* A layout as one block of bytes, which is copied to the device unchanged. */
#ifndef CUDA_COPY_IMAGE_H
#define CUDA_COPY_IMAGE_H

#include <stdbool.h>

#include "cuda/copy/layout.h"

/* The bytes, and the offset of each array in them. */
typedef struct copy_image {
    char *data;
    size_t bytes;
    size_t lanes, moves, dims, walks, spans;
} copy_image;

/* Write all arrays except the lanes, which are zero, with the shares of `warps` warps (0: none).
 * The caller frees `data`. False if out of memory; `bytes` is set in any case. */
bool copy_image_make(const copy_layout *layout, uint32_t warps, copy_image *made);

copy_lane *copy_image_lanes(const copy_image *image);

/* Let a kernel's arguments point to the arrays of a copy at `there`. */
void copy_image_point(const copy_image *image, const char *there, copy_args *args);

#endif
