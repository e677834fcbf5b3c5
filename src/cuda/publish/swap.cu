/* Exchange the values of streams, which have been checked, with the elements of boxes. A warp
 * exchanges one block. */
#include "cuda/publish/view.cuh"

/* A block of a box and its stream. */
typedef struct swap_block {
    const changes_view *box;
    uint64_t first; /* element */
    uint32_t elems, count;
    unsigned char *at; /* behind the head */
    uint64_t bytes;    /* from there to the end */
} swap_block;

BANYAN_DEVICE void swap_one(const swap_block &block, uint32_t position, unsigned char *values,
                            uint32_t index)
{
    uint32_t elem_bytes = block.box->unit_bytes;
    swap_element(view_at(*block.box, block.first + position), values + (uint64_t)index * elem_bytes,
                 elem_bytes);
}

static __device__ void swap_whole(const swap_block &block, unsigned lane)
{
    for (uint32_t i = lane; i < block.elems; i += CHANGES_WARP)
        swap_one(block, i, block.at, i);
}

/* Each lane has the elements of 128 bits. */
static __device__ void swap_bitmap(const swap_block &block, unsigned lane)
{
    uint32_t bytes = (block.elems + 7) / 8, first = lane * (DELTA_BLOCK / CHANGES_WARP / 8);
    uint64_t bits[2] = {0, 0};
    for (uint32_t i = 0; i < 16 && first + i < bytes; i++)
        bits[i / 8] |= (uint64_t)block.at[first + i] << i % 8 * 8;
    uint32_t count = (uint32_t)(__popcll(bits[0]) + __popcll(bits[1]));
    uint32_t index = warp_sum_up_to(count, lane) - count;
    for (int word = 0; word < 2; word++)
        for (uint64_t left = bits[word]; left; left &= left - 1, index++)
            swap_one(block,
                     8 * first + 64 * (uint32_t)word + (uint32_t)__ffsll((long long)left) - 1,
                     block.at + bytes, index);
}

/* Each lane takes one byte of gaps in a step. */
static __device__ void swap_gaps(const swap_block &block, unsigned lane)
{
    uint32_t gap_bytes = (uint32_t)(block.bytes - (uint64_t)block.count * block.box->unit_bytes);
    uint32_t position = 0, index = 0; /* of the steps before */
    for (uint32_t done = 0; done < gap_bytes; done += CHANGES_WARP) {
        bool is_gap = done + lane < gap_bytes;
        uint32_t gap = is_gap ? block.at[done + lane] : 0;
        uint32_t ends = is_gap && gap != DELTA_LONG_GAP;
        /* Positions need 13 bits. */
        uint32_t sums = warp_sum_up_to(is_gap ? (gap + ends) << 8 | ends : 0, lane);
        if (ends)
            swap_one(block, position + (sums >> 8) - 1, block.at + gap_bytes,
                     index + (sums & 0xff) - 1);
        sums = __shfl_sync(ALL_LANES, sums, CHANGES_WARP - 1);
        position += sums >> 8;
        index += sums & 0xff;
    }
}

static __device__ void exchange_block(const changes_swap_args &args, const changes_part &part,
                                      uint64_t k, unsigned lane)
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
    uint32_t word = head[0] | (uint32_t)head[1] << 8;
    block.count = word & ((1u << DELTA_COUNT_BITS) - 1);
    switch (word >> DELTA_COUNT_BITS) {
    case DELTA_GAPS:
        swap_gaps(block, lane);
        break;
    case DELTA_BITMAP:
        swap_bitmap(block, lane);
        break;
    case DELTA_WHOLE:
        swap_whole(block, lane);
        break;
    }
}

static __global__ void __launch_bounds__(CHANGES_THREADS_MAX)
    swap_changes(const __grid_constant__ changes_swap_args args)
{
    unsigned lane = view_lane();
    for (uint64_t number = view_warp(); number < args.part_count * DELTA_PART_BLOCKS;
         number += view_warps()) {
        const changes_part &part = args.parts[number / DELTA_PART_BLOCKS];
        if (number % DELTA_PART_BLOCKS < part.count)
            exchange_block(args, part, number % DELTA_PART_BLOCKS, lane);
    }
}

const void *changes_swap_kernel(void)
{
    return DEVICE_KERNEL(swap_changes, changes_swap_args);
}
