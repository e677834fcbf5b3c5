/* A block of a box, and its stream. */
#ifndef CUDA_PUBLISH_BLOCK_CUH
#define CUDA_PUBLISH_BLOCK_CUH

#include "cuda/publish/view.cuh"

typedef struct swap_block {
    const changes_view *box;
    uint64_t first; /* element */
    uint32_t elems, count, form;
    int64_t shift;     /* of changes_swap_args */
    changes_row row;   /* that begins with the first element */
    unsigned char *at; /* behind the head */
    uint64_t bytes;    /* from there to the end */
} swap_block;

BANYAN_DEVICE_RARE char *find_element(const changes_view &box, uint64_t number)
{
    return view_at(box, number);
}

BANYAN_DEVICE char *element_at(const swap_block &block, uint32_t position)
{
    return find_element(*block.box, block.first + position) + block.shift;
}

/* Return the address of a byte of a block, which begins an element or some. `in_row`: the block
 * lies in one row of contiguous elements. */
template <typename element, bool in_row>
BANYAN_DEVICE char *block_at(const swap_block &block, uint32_t byte)
{
    if (in_row)
        return block.row.at + byte;
    return element_at(block, byte / (uint32_t)sizeof(element));
}

BANYAN_DEVICE swap_block open_block(const changes_swap_args &args, const changes_part &part,
                                    uint64_t k)
{
    const uint64_t *ends = args.ends + part.first_end;
    uint64_t begin = k > 0 ? ends[k - 1] : 0;
    swap_block block;
    unsigned char *head = part.stream + begin;
    block.box = args.boxes + part.box;
    block.first = (part.first + k) * DELTA_BLOCK;
    uint64_t left = block.box->count - block.first;
    block.elems = left < DELTA_BLOCK ? (uint32_t)left : DELTA_BLOCK;
    block.at = head + DELTA_HEAD_BYTES;
    block.bytes = ends[k] - begin - DELTA_HEAD_BYTES;
    block.shift = args.shift;
    block.row = view_row(*block.box, block.first);
    block.row.at += args.shift;
    uint32_t word = head[0] | (uint32_t)head[1] << 8;
    block.form = word >> DELTA_COUNT_BITS;
    block.count = word & ((1u << DELTA_COUNT_BITS) - 1);
    return block;
}

#endif
