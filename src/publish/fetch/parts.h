/* Parts of boxes in a fetch, as both sides see them. */
#ifndef PUBLISH_FETCH_PARTS_H
#define PUBLISH_FETCH_PARTS_H

#include "publish/fetch/fetch.h"
#include "reshard/layout/layout.h"

/* Blocks of a part. */
#define PART_BLOCKS DELTA_PART_BLOCKS

/* Description of a part of a transfer, in a message. */
struct part_head {
    uint64_t task_id, first, count;
    uint64_t bytes, hash;  /* of the stream */
    uint64_t packed_bytes; /* that travel: `bytes`, or fewer if it is compressed (delta/planes.h) */
};

/* The checksum of a whole box. */
struct box_sum {
    uint64_t task_id, hash;
};

/* Return the number of elements of a part of a box, from block `first` on. */
static inline size_t part_elems(const strided_view *box, uint64_t first)
{
    uint64_t left = box->elems - first * DELTA_BLOCK, most = PART_BLOCKS * DELTA_BLOCK;
    return left < most ? left : most;
}

/* View a transfer's box in a local tensor. */
static inline banyan_status part_view_box(const banyan_layout *layout,
                                          const banyan_tensors *tensors, size_t piece,
                                          const banyan_box *box, strided_view *view, size_t *tensor)
{
    int64_t shape[BANYAN_MAX_DIMS], strides[BANYAN_MAX_DIMS];
    const banyan_piece *held = banyan_layout_piece(layout, piece);
    DLTensor local;
    *tensor = (size_t)held->tensor;
    piece_view(held, box, banyan_tensors_get(tensors, *tensor), shape, strides, &local);
    return strided_view_anywhere(&local, view);
}

static inline DLTensor bytes_tensor(void *data, int64_t *bytes)
{
    return (DLTensor){
        .data = data, .device = BANYAN_HOST, .ndim = 1, .dtype = {kDLUInt, 8, 1}, .shape = bytes};
}

#endif
