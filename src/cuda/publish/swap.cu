/* Exchange the values of streams, which have been checked, with the elements of boxes. A warp
 * exchanges one block. Each lane has several elements at a time, and loads all of them before it
 * stores one, so that they wait for memory together. */
#include <string.h>

#include "cuda/publish/view.cuh"

#define AT_ONCE 4 /* elements of a lane */

/* A block of a box and its stream. */
typedef struct swap_block {
    const changes_view *box;
    uint64_t first; /* element */
    uint32_t elems, count;
    changes_row row; /* that begins with the first element */
    unsigned char *at; /* behind the head */
    uint64_t bytes;    /* from there to the end */
} swap_block;

/* Elements that a lane exchanges at once: positions in the block, and the first of their values,
 * which lie side by side. */
typedef struct swap_batch {
    uint32_t count;
    uint32_t position[AT_ONCE];
    unsigned char *values;
} swap_batch;

/* Elements of a size that is no type's, or that are not aligned. */
struct odd_element {};

BANYAN_DEVICE_RARE char *find_element(const changes_view &box, uint64_t number)
{
    return view_at(box, number);
}

BANYAN_DEVICE_RARE void exchange_odd(const swap_block &block, const swap_batch &batch)
{
    uint32_t elem_bytes = block.box->unit_bytes;
    for (uint32_t k = 0; k < batch.count; k++) {
        char *to = view_at(*block.box, block.first + batch.position[k]);
        unsigned char *from = batch.values + k * elem_bytes;
        for (uint32_t i = 0; i < elem_bytes; i++) {
            char kept = to[i];
            to[i] = (char)from[i];
            from[i] = (unsigned char)kept;
        }
    }
}

template <typename element>
BANYAN_DEVICE void exchange(const swap_block &block, const swap_batch &batch)
{
    element *to[AT_ONCE], before[AT_ONCE], after[AT_ONCE];
    BANYAN_DEVICE_UNROLL
    for (uint32_t k = 0; k < AT_ONCE; k++)
        if (k < batch.count)
            to[k] = (element *)(block.row.left >= block.elems
                                    ? block.row.at + (int64_t)batch.position[k] * block.row.stride
                                    : find_element(*block.box, block.first + batch.position[k]));
    BANYAN_DEVICE_UNROLL
    for (uint32_t k = 0; k < AT_ONCE; k++) {
        if (k >= batch.count)
            continue;
        before[k] = *to[k];
        memcpy(&after[k], batch.values + k * sizeof(element), sizeof(element));
    }
    BANYAN_DEVICE_UNROLL
    for (uint32_t k = 0; k < AT_ONCE; k++) {
        if (k >= batch.count)
            continue;
        *to[k] = after[k];
        memcpy(batch.values + k * sizeof(element), &before[k], sizeof(element));
    }
}

template <>
BANYAN_DEVICE_MEMBER void exchange<odd_element>(const swap_block &block, const swap_batch &batch)
{
    exchange_odd(block, batch);
}

/* Runs of AT_ONCE elements, lane by lane. */
template <typename element>
BANYAN_DEVICE void swap_whole(const swap_block &block, unsigned lane)
{
    for (uint32_t i = AT_ONCE * lane; i < block.elems; i += AT_ONCE * CHANGES_WARP) {
        uint32_t left = block.elems - i;
        swap_batch batch;
        batch.count = left < AT_ONCE ? left : AT_ONCE;
        BANYAN_DEVICE_UNROLL
        for (uint32_t k = 0; k < AT_ONCE; k++)
            batch.position[k] = i + k;
        batch.values = block.at + (uint64_t)i * block.box->unit_bytes;
        exchange<element>(block, batch);
    }
}

/* Each lane has one word of 32 bits in a step. */
template <typename element>
BANYAN_DEVICE void swap_bitmap(const swap_block &block, unsigned lane)
{
    uint32_t bytes = (block.elems + 7) / 8, index = 0; /* `index`: of the steps before */
    for (uint32_t first = 0; first < bytes; first += 4 * CHANGES_WARP) {
        uint32_t at = first + 4 * lane, bits = 0;
        BANYAN_DEVICE_UNROLL
        for (uint32_t i = 0; i < 4; i++)
            if (at + i < bytes)
                bits |= (uint32_t)block.at[at + i] << 8 * i;
        uint32_t count = (uint32_t)__popc(bits), sums = warp_sum_up_to(count, lane);
        unsigned char *values =
            block.at + bytes + (uint64_t)(index + sums - count) * block.box->unit_bytes;
        while (bits) {
            swap_batch batch;
            batch.count = 0;
            batch.values = values;
            BANYAN_DEVICE_UNROLL
            for (uint32_t k = 0; k < AT_ONCE; k++) {
                if (!bits)
                    continue;
                batch.position[k] = 8 * at + (uint32_t)__ffsll((long long)bits) - 1;
                batch.count++;
                bits &= bits - 1;
            }
            exchange<element>(block, batch);
            values += batch.count * block.box->unit_bytes;
        }
        index += __shfl_sync(ALL_LANES, sums, CHANGES_WARP - 1);
    }
}

/* Each lane takes AT_ONCE bytes of gaps in a step. */
template <typename element>
BANYAN_DEVICE void swap_gaps(const swap_block &block, unsigned lane)
{
    uint32_t elem_bytes = block.box->unit_bytes;
    uint32_t gap_bytes = (uint32_t)(block.bytes - (uint64_t)block.count * elem_bytes);
    uint32_t position = 0, index = 0; /* of the steps before */
    for (uint32_t done = 0; done < gap_bytes; done += AT_ONCE * CHANGES_WARP) {
        uint32_t first = done + AT_ONCE * lane, gap[AT_ONCE], sum = 0;
        BANYAN_DEVICE_UNROLL
        for (uint32_t k = 0; k < AT_ONCE; k++)
            gap[k] = first + k < gap_bytes ? block.at[first + k] : DELTA_LONG_GAP + 1;
        /* In one word: elements up to here, and, of 24 bits, positions. */
        BANYAN_DEVICE_UNROLL
        for (uint32_t k = 0; k < AT_ONCE; k++)
            sum += gap[k] < DELTA_LONG_GAP    ? (gap[k] + 1) << 8 | 1
                   : gap[k] == DELTA_LONG_GAP ? gap[k] << 8
                                              : 0;
        uint32_t sums = warp_sum_up_to(sum, lane), before = sums - sum;
        uint32_t at = position + (before >> 8);
        swap_batch batch;
        batch.count = 0;
        batch.values = block.at + gap_bytes + (uint64_t)(index + (before & 0xff)) * elem_bytes;
        BANYAN_DEVICE_UNROLL
        for (uint32_t k = 0; k < AT_ONCE; k++) {
            if (gap[k] > DELTA_LONG_GAP)
                continue;
            at += gap[k];
            if (gap[k] == DELTA_LONG_GAP)
                continue;
            BANYAN_DEVICE_UNROLL
            for (uint32_t i = 0; i < AT_ONCE; i++) /* batch.position[batch.count], in registers */
                if (i == batch.count)
                    batch.position[i] = at;
            batch.count++;
            at++;
        }
        exchange<element>(block, batch);
        sums = __shfl_sync(ALL_LANES, sums, CHANGES_WARP - 1);
        position += sums >> 8;
        index += sums & 0xff;
    }
}

template <typename element>
BANYAN_DEVICE void exchange_values(const swap_block &block, uint32_t form, unsigned lane)
{
    if (form == DELTA_GAPS)
        swap_gaps<element>(block, lane);
    else if (form == DELTA_BITMAP)
        swap_bitmap<element>(block, lane);
    else if (form == DELTA_WHOLE)
        swap_whole<element>(block, lane);
}

BANYAN_DEVICE swap_block open_block(const changes_swap_args &args, const changes_part &part,
                                    uint64_t k, uint32_t *form)
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
    block.row = view_row(*block.box, block.first);
    uint32_t word = head[0] | (uint32_t)head[1] << 8;
    *form = word >> DELTA_COUNT_BITS;
    block.count = word & ((1u << DELTA_COUNT_BITS) - 1);
    return block;
}

/* All elements but aligned ones of two bytes. The block is not passed, so that the kernel keeps its
 * own in registers. */
BANYAN_DEVICE_RARE void exchange_others(const changes_swap_args &args, const changes_part &part,
                                        uint64_t k, unsigned lane)
{
    uint32_t form;
    swap_block block = open_block(args, part, k, &form);
    switch (block.box->aligned ? block.box->unit_bytes : 0) {
    case 1:
        exchange_values<uint8_t>(block, form, lane);
        break;
    case 4:
        exchange_values<uint32_t>(block, form, lane);
        break;
    case 8:
        exchange_values<uint2>(block, form, lane);
        break;
    case 16:
        exchange_values<uint4>(block, form, lane);
        break;
    default:
        exchange_values<odd_element>(block, form, lane);
    }
}

BANYAN_DEVICE void exchange_block(const changes_swap_args &args, const changes_part &part,
                                  uint64_t k, unsigned lane)
{
    const changes_view &box = args.boxes[part.box];
    if (!box.aligned || box.unit_bytes != 2) {
        exchange_others(args, part, k, lane);
        return;
    }
    uint32_t form;
    swap_block block = open_block(args, part, k, &form);
    exchange_values<uint16_t>(block, form, lane);
}

static __global__ void __launch_bounds__(CHANGES_THREADS_MAX, 3)
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
