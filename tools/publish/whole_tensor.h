/* A tensor that one rank holds as a whole. */
#ifndef TOOLS_WHOLE_TENSOR_H
#define TOOLS_WHOLE_TENSOR_H

#include <banyan/layout.h>

/* Add the tensor and its piece. The layout keeps errors. */
static inline void whole_tensor_add(banyan_layout *layout, const banyan_local_tensor *tensor)
{
    banyan_piece piece = {.name = tensor->name, .ndim = tensor->ndim, .box.ndim = tensor->ndim};
    piece.tensor =
        banyan_layout_add_tensor(layout, tensor->name, tensor->dtype, tensor->ndim, tensor->shape);
    for (int d = 0; d < tensor->ndim; d++) {
        piece.shape[d] = piece.box.extent[d] = tensor->shape[d];
        piece.dim_map[d] = d;
    }
    banyan_layout_add_piece(layout, &piece);
}

static inline uint64_t whole_tensor_elems(const banyan_local_tensor *tensor)
{
    uint64_t elems = 1;
    for (int d = 0; d < tensor->ndim; d++)
        elems *= (uint64_t)tensor->shape[d];
    return elems;
}

static inline uint64_t whole_tensor_bytes(const banyan_local_tensor *tensor)
{
    return whole_tensor_elems(tensor) * banyan_dtype_bytes(tensor->dtype);
}

#endif
