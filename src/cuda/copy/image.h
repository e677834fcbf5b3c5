/* A layout as one block of bytes, to be copied to the device as it is. */
#ifndef CUDA_COPY_IMAGE_H
#define CUDA_COPY_IMAGE_H

#include <stdbool.h>

#include "cuda/copy/layout.h"

/* Its bytes, and where each array begins in them. */
typedef struct copy_image {
    char *data;
    size_t bytes;
    size_t lanes, moves, dims, walks, spans;
} copy_image;

/* With all arrays but the lanes, which are zero, and with the shares of `warps` warps (0:
 * nobody's). `data` is to be freed. False when memory ran out; `bytes` is set all the same. */
bool copy_image_make(const copy_layout *layout, uint32_t warps, copy_image *made);

copy_lane *copy_image_lanes(const copy_image *image);

/* Have a kernel's arguments point to the arrays of a copy that lies `there`. */
void copy_image_point(const copy_image *image, const char *there, copy_args *args);

#endif
