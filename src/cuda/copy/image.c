#include "cuda/copy/image.h"

#include <stdlib.h>
#include <string.h>

#define ARRAYS_APART 128

static size_t image_place(size_t *bytes, size_t more)
{
    size_t at = *bytes;
    *bytes += (more + ARRAYS_APART - 1) / ARRAYS_APART * ARRAYS_APART;
    return at;
}

static void copy_list(char *to, const void *list, size_t bytes)
{
    if (bytes > 0)
        memcpy(to, list, bytes);
}

bool copy_image_make(const copy_layout *layout, uint32_t warps, copy_image *made)
{
    copy_image image = {0};
    image.lanes = image_place(&image.bytes, layout->lane_count * sizeof(copy_lane));
    image.moves = image_place(&image.bytes, layout->move_count * sizeof(copy_move));
    image.dims = image_place(&image.bytes, layout->dim_count * sizeof(copy_dim));
    image.walks = image_place(&image.bytes, layout->walk_count * sizeof(copy_walk));
    image.spans = image_place(&image.bytes, layout->lane_count * warps * sizeof(copy_span));
    image.bytes++; /* devices have no allocations of 0 bytes */
    image.data = calloc(1, image.bytes);
    *made = image;
    if (!image.data)
        return false;
    copy_list(image.data + image.moves, layout->moves, layout->move_count * sizeof(copy_move));
    copy_list(image.data + image.dims, layout->dims, layout->dim_count * sizeof(copy_dim));
    copy_list(image.data + image.walks, layout->walks, layout->walk_count * sizeof(copy_walk));
    if (warps > 0)
        copy_layout_spans(layout, warps, (copy_span *)(void *)(image.data + image.spans));
    return true;
}

copy_lane *copy_image_lanes(const copy_image *image)
{
    return (copy_lane *)(void *)(image->data + image->lanes);
}

void copy_image_point(const copy_image *image, const char *there, copy_args *args)
{
    args->lanes = (const copy_lane *)(const void *)(there + image->lanes);
    args->moves = (const copy_move *)(const void *)(there + image->moves);
    args->dims = (const copy_dim *)(const void *)(there + image->dims);
    args->walks = (const copy_walk *)(const void *)(there + image->walks);
    args->spans = (const copy_span *)(const void *)(there + image->spans);
}
