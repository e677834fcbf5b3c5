/* Exchange the values of streams, which have been checked, with the elements of boxes. A warp
 * exchanges one block. Boxes of whole sectors have kernels of their own (sectors.cuh). In others
 * each lane has several elements at a time, and loads all of them before it stores one, so that
 * they wait for memory together. */
#include <string.h>

#include "cuda/publish/sectors.cuh"

#define ELEMENTS_AT_ONCE 4 /* of a lane */

/* Elements that a lane exchanges at once: positions in the block, and the first of their values,
 * which lie side by side. */
typedef struct swap_batch {
    uint32_t count;
    uint32_t position[ELEMENTS_AT_ONCE];
    unsigned char *values;
} swap_batch;

/* Elements of a size that is no type's, or that are not aligned. */
struct odd_element {
};

BANYAN_DEVICE_RARE void exchange_odd(const swap_block &block, const swap_batch &batch)
{
    uint32_t elem_bytes = block.box->unit_bytes;
    for (uint32_t k = 0; k < batch.count; k++) {
        char *to = element_at(block, batch.position[k]);
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
    element *to[ELEMENTS_AT_ONCE], before[ELEMENTS_AT_ONCE], after[ELEMENTS_AT_ONCE];
    BANYAN_DEVICE_UNROLL
    for (uint32_t k = 0; k < ELEMENTS_AT_ONCE; k++)
        if (k < batch.count)
            to[k] = (element *)(block.row.left >= block.elems
                                    ? block.row.at + (int64_t)batch.position[k] * block.row.stride
                                    : element_at(block, batch.position[k]));
    BANYAN_DEVICE_UNROLL
    for (uint32_t k = 0; k < ELEMENTS_AT_ONCE; k++) {
        if (k >= batch.count)
            continue;
        before[k] = *to[k];
        memcpy(&after[k], batch.values + k * sizeof(element), sizeof(element));
    }
    BANYAN_DEVICE_UNROLL
    for (uint32_t k = 0; k < ELEMENTS_AT_ONCE; k++) {
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

/* Runs of ELEMENTS_AT_ONCE elements, lane by lane. */
template <typename element> BANYAN_DEVICE void swap_whole(const swap_block &block, unsigned lane)
{
    for (uint32_t i = ELEMENTS_AT_ONCE * lane; i < block.elems;
         i += ELEMENTS_AT_ONCE * CHANGES_WARP) {
        uint32_t left = block.elems - i;
        swap_batch batch;
        batch.count = left < ELEMENTS_AT_ONCE ? left : ELEMENTS_AT_ONCE;
        BANYAN_DEVICE_UNROLL
        for (uint32_t k = 0; k < ELEMENTS_AT_ONCE; k++)
            batch.position[k] = i + k;
        batch.values = block.at + (uint64_t)i * block.box->unit_bytes;
        exchange<element>(block, batch);
    }
}

/* Each lane has one word of 32 bits in a step. */
template <typename element> BANYAN_DEVICE void swap_bitmap(const swap_block &block, unsigned lane)
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
            for (uint32_t k = 0; k < ELEMENTS_AT_ONCE; k++) {
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

/* Each lane takes ELEMENTS_AT_ONCE bytes of gaps in a step. */
template <typename element> BANYAN_DEVICE void swap_gaps(const swap_block &block, unsigned lane)
{
    uint32_t elem_bytes = block.box->unit_bytes;
    uint32_t gap_bytes = (uint32_t)(block.bytes - (uint64_t)block.count * elem_bytes);
    uint32_t position = 0, index = 0; /* of the steps before */
    for (uint32_t done = 0; done < gap_bytes; done += ELEMENTS_AT_ONCE * CHANGES_WARP) {
        uint32_t first = done + ELEMENTS_AT_ONCE * lane, gap[ELEMENTS_AT_ONCE], sum = 0;
        BANYAN_DEVICE_UNROLL
        for (uint32_t k = 0; k < ELEMENTS_AT_ONCE; k++)
            gap[k] = first + k < gap_bytes ? block.at[first + k] : DELTA_LONG_GAP + 1;
        /* In one word: elements up to here, and, of 24 bits, positions. */
        BANYAN_DEVICE_UNROLL
        for (uint32_t k = 0; k < ELEMENTS_AT_ONCE; k++)
            sum += gap[k] < DELTA_LONG_GAP    ? (gap[k] + 1) << 8 | 1
                   : gap[k] == DELTA_LONG_GAP ? gap[k] << 8
                                              : 0;
        uint32_t sums = warp_sum_up_to(sum, lane), before = sums - sum;
        uint32_t at = position + (before >> 8);
        swap_batch batch;
        batch.count = 0;
        batch.values = block.at + gap_bytes + (uint64_t)(index + (before & 0xff)) * elem_bytes;
        BANYAN_DEVICE_UNROLL
        for (uint32_t k = 0; k < ELEMENTS_AT_ONCE; k++) {
            if (gap[k] > DELTA_LONG_GAP)
                continue;
            at += gap[k];
            if (gap[k] == DELTA_LONG_GAP)
                continue;
            BANYAN_DEVICE_UNROLL
            for (uint32_t i = 0; i < ELEMENTS_AT_ONCE;
                 i++) /* batch.position[batch.count], in registers */
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
BANYAN_DEVICE void exchange_values(const swap_block &block, unsigned lane)
{
    if (block.form == DELTA_GAPS)
        swap_gaps<element>(block, lane);
    else if (block.form == DELTA_BITMAP)
        swap_bitmap<element>(block, lane);
    else if (block.form == DELTA_WHOLE)
        swap_whole<element>(block, lane);
}

BANYAN_DEVICE void exchange_block(const swap_block &block, unsigned lane)
{
    switch (block.box->aligned ? block.box->unit_bytes : 0) {
    case 1:
        exchange_values<uint8_t>(block, lane);
        break;
    case 2:
        exchange_values<uint16_t>(block, lane);
        break;
    case 4:
        exchange_values<uint32_t>(block, lane);
        break;
    case 8:
        exchange_values<uint2>(block, lane);
        break;
    case 16:
        exchange_values<uint4>(block, lane);
        break;
    default:
        exchange_values<odd_element>(block, lane);
    }
}

/* Call a function for each block of the boxes of a kind. */
template <typename function>
BANYAN_DEVICE void for_each_block(const changes_swap_args &args, const function &call)
{
    for (uint64_t number = view_warp(); number < args.part_count * DELTA_PART_BLOCKS;
         number += view_warps()) {
        const changes_part &part = args.parts[number / DELTA_PART_BLOCKS];
        uint64_t k = number % DELTA_PART_BLOCKS;
        if (k < part.count && args.boxes[part.box].kind == args.kind)
            call(open_block(args, part, k));
    }
}

static __global__ void __launch_bounds__(CHANGES_THREADS_MAX, 2)
    swap_elements(const __grid_constant__ changes_swap_args args)
{
    unsigned lane = view_lane();
    for_each_block(args, [&](const swap_block &block) { exchange_block(block, lane); });
}

template <typename element, bool in_row>
static __global__ void __launch_bounds__(CHANGES_THREADS_MAX, in_row ? 4 : 2)
    swap_sectors(const __grid_constant__ changes_swap_args args)
{
    unsigned lane = view_lane();
    sector_cache *cache = (sector_cache *)device_shared() + threadIdx.x / CHANGES_WARP;
    for_each_block(args, [&](const swap_block &block) {
        exchange_block_of_sectors<element, in_row>(block, cache, lane);
    });
}

const void *changes_swap_kernel(enum changes_kind kind)
{
    switch (kind) {
    case CHANGES_ROW_OF_2_BYTES:
        return DEVICE_KERNEL((swap_sectors<uint16_t, true>), changes_swap_args);
    case CHANGES_SECTORS_OF_2_BYTES:
        return DEVICE_KERNEL((swap_sectors<uint16_t, false>), changes_swap_args);
    case CHANGES_SECTORS_OF_1_BYTE:
        return DEVICE_KERNEL((swap_sectors<uint8_t, false>), changes_swap_args);
    case CHANGES_SECTORS_OF_4_BYTES:
        return DEVICE_KERNEL((swap_sectors<uint32_t, false>), changes_swap_args);
    default:
        return DEVICE_KERNEL(swap_elements, changes_swap_args);
    }
}
