/* Write the streams of boxes (publish/delta/stream.h). A warp writes one block, or measures it:
 * each lane has 128 elements of the block, in their order. Positions and values are put together in
 * shared memory, so that a warp reads elements side by side, and writes words. */
#include "cuda/publish/words.cuh"

#define LANE_ELEMS (DELTA_BLOCK / CHANGES_WARP)
#define LISTED_MOST 512
#define VALUES_AT_ONCE 4 /* of a lane */

/* Shared memory of a warp. */
typedef struct pack_cache {
    uint32_t words[LISTED_MOST]; /* of what is written next */
    uint16_t positions[LISTED_MOST];
} pack_cache;

static_assert(sizeof(pack_cache) == CHANGES_PACK_CACHE_BYTES, "the launch reserves this much");
static_assert(DELTA_BLOCK / 8 <= sizeof(uint32_t[LISTED_MOST]), "gaps and bitmaps fit");

/* What a lane knows of its block. */
typedef struct lane_part {
    uint64_t first;   /* the lane's first element in the box */
    uint32_t elems;   /* of the lane */
    uint64_t bits[2]; /* of its elements that have changed */
} lane_part;

/* Return the bits of 64 elements from `at` on. */
BANYAN_DEVICE uint64_t changed_at(const changes_box &box, const uint64_t *const *maps, uint64_t at)
{
    uint64_t word = at / 64, shift = at % 64, bits = 0;
    for (uint32_t i = 0; i < box.map_count; i++) {
        const uint64_t *map = maps[box.first_map + i] + word;
        bits |= map[0] >> shift;
        if (shift > 0)
            bits |= map[1] << (64 - shift);
    }
    return bits;
}

/* Add bits at a position below 128. */
BANYAN_DEVICE void add_bits(uint64_t *bits, uint32_t position, uint64_t more)
{
    if (position >= 64) {
        bits[1] |= more << (position - 64);
        return;
    }
    bits[0] |= more << position;
    if (position > 0)
        bits[1] |= more >> (64 - position);
}

static __device__ lane_part read_bits(const changes_box &box, const uint64_t *const *maps,
                                      uint64_t block, uint32_t elems, unsigned lane)
{
    uint32_t before = lane * LANE_ELEMS, left = elems > before ? elems - before : 0;
    lane_part part = {block * DELTA_BLOCK + before, left < LANE_ELEMS ? left : LANE_ELEMS, {0, 0}};
    for (uint32_t done = 0; done < part.elems;) {
        changes_row row = view_row(box.view, part.first + done);
        uint32_t more = part.elems - done;
        if (row.left < more)
            more = (uint32_t)row.left;
        bool run = row.stride == (int64_t)box.view.unit_bytes;
        for (uint32_t i = 0; i < more; i += run ? 64 : 1) {
            uint64_t offset = (uint64_t)(row.at + (int64_t)i * row.stride - box.memory);
            uint64_t bits = changed_at(box, maps, view_divide(offset, box.view.unit_bytes));
            uint32_t some = !run ? 1 : more - i < 64 ? more - i : 64;
            if (some < 64)
                bits &= ((uint64_t)1 << some) - 1;
            add_bits(part.bits, done + i, bits);
        }
        done += more;
    }
    return part;
}

/* Call a function with the position in the block of each changed element of a lane. */
template <typename function>
BANYAN_DEVICE void for_each_position(const lane_part &part, unsigned lane, const function &call)
{
    BANYAN_DEVICE_UNROLL
    for (uint32_t word = 0; word < 2; word++)
        for (uint64_t left = part.bits[word]; left; left &= left - 1)
            call(lane * LANE_ELEMS + 64 * word + (uint32_t)__ffsll((long long)left) - 1);
}

/* Positions of a block in both forms, as this lane sees them. */
typedef struct positions {
    uint32_t count, values_before; /* changed elements of the lane, and of the lanes before it */
    uint32_t next;                 /* one behind the last changed element of the lanes before */
    uint32_t gap_bytes, gaps_before;
    uint32_t all_count, all_gap_bytes; /* of the block */
} positions;

static __device__ positions count_positions(const lane_part &part, unsigned lane)
{
    positions found = {};
    found.count = (uint32_t)(__popcll(part.bits[0]) + __popcll(part.bits[1]));
    uint32_t first = lane * LANE_ELEMS, last = 0;
    if (part.bits[1])
        last = first + 128 - (uint32_t)__clzll((long long)part.bits[1]);
    else if (part.bits[0])
        last = first + 64 - (uint32_t)__clzll((long long)part.bits[0]);
    if (part.bits[0])
        first += (uint32_t)__ffsll((long long)part.bits[0]) - 1;
    else if (part.bits[1])
        first += 64 + (uint32_t)__ffsll((long long)part.bits[1]) - 1;
    found.next = warp_before(warp_max_up_to(last, lane), lane);
    /* Only the gap before the lane's first change can be a long one. */
    static_assert(LANE_ELEMS <= DELTA_LONG_GAP, "gaps within a lane are short");
    if (found.count > 0)
        found.gap_bytes = found.count + (first - found.next) / DELTA_LONG_GAP;
    uint32_t values = warp_sum_up_to(found.count, lane);
    uint32_t gaps = warp_sum_up_to(found.gap_bytes, lane);
    found.values_before = values - found.count;
    found.gaps_before = gaps - found.gap_bytes;
    found.all_count = __shfl_sync(ALL_LANES, values, CHANGES_WARP - 1);
    found.all_gap_bytes = __shfl_sync(ALL_LANES, gaps, CHANGES_WARP - 1);
    return found;
}

/* The form of a block, by delta_write's rule. */
typedef struct block_form {
    uint32_t form, count;
    uint32_t position_bytes;
    uint64_t bytes;
} block_form;

BANYAN_DEVICE block_form choose_form(uint32_t elems, uint32_t elem_bytes, bool whole,
                                     uint32_t count, uint32_t gap_bytes)
{
    uint32_t bitmap_bytes = (elems + 7) / 8;
    uint32_t least = gap_bytes < bitmap_bytes ? gap_bytes : bitmap_bytes;
    uint64_t whole_bytes = (uint64_t)elems * elem_bytes;
    uint64_t value_bytes = (uint64_t)count * elem_bytes;
    block_form made = {DELTA_WHOLE, elems, 0, DELTA_HEAD_BYTES + whole_bytes};
    if (whole || whole_bytes > DELTA_VALUES_MOST || least + value_bytes >= whole_bytes)
        return made;
    made.form = count == 0 ? DELTA_NONE : gap_bytes <= bitmap_bytes ? DELTA_GAPS : DELTA_BITMAP;
    made.count = count;
    made.position_bytes = least;
    made.bytes = DELTA_HEAD_BYTES + least + value_bytes;
    return made;
}

/* Copy four elements of two bytes, a warp apart, to dense memory. */
BANYAN_DEVICE void move_halves(unsigned char *to, const changes_row &row, uint32_t i,
                               uint32_t elems)
{
    uint16_t values[4];
    BANYAN_DEVICE_UNROLL
    for (uint32_t k = 0; k < 4; k++)
        if (i + k * CHANGES_WARP < elems)
            values[k] = *(const uint16_t *)(row.at + (int64_t)(i + k * CHANGES_WARP) * row.stride);
    BANYAN_DEVICE_UNROLL
    for (uint32_t k = 0; k < 4; k++)
        if (i + k * CHANGES_WARP < elems)
            ((uint16_t *)to)[i + k * CHANGES_WARP] = values[k];
}

static __device__ void write_whole(const changes_box &box, uint64_t block, uint32_t elems,
                                   unsigned char *to, unsigned lane)
{
    uint32_t elem_bytes = box.view.unit_bytes;
    uint64_t first = block * DELTA_BLOCK;
    changes_row row = view_row(box.view, first);
    bool halves = elem_bytes == 2 && box.view.aligned && (uintptr_t)to % 2 == 0;
    if (halves && row.left >= elems) {
        for (uint32_t i = lane; i < elems; i += 4 * CHANGES_WARP)
            move_halves(to, row, i, elems);
        return;
    }
    for (uint32_t i = lane; i < elems; i += CHANGES_WARP)
        move_element(to + (uint64_t)i * elem_bytes, view_at(box.view, first + i), elem_bytes);
}

/* Write to shared memory: the bitmap, and the gaps. */

static __device__ void put_bitmap(const lane_part &part, pack_cache *cache, unsigned lane)
{
    BANYAN_DEVICE_UNROLL
    for (uint32_t i = 0; i < 4; i++)
        cache->words[4 * lane + i] = (uint32_t)(part.bits[i / 2] >> i % 2 * 32);
}

static __device__ void put_gaps(const lane_part &part, const positions &where, pack_cache *cache,
                                unsigned lane)
{
    uint32_t next = where.next;
    unsigned char *to = (unsigned char *)cache->words + where.gaps_before;
    for_each_position(part, lane, [&](uint32_t position) {
        uint32_t gap = position - next;
        for (; gap >= DELTA_LONG_GAP; gap -= DELTA_LONG_GAP)
            *to++ = DELTA_LONG_GAP;
        *to++ = (unsigned char)gap;
        next = position + 1;
    });
}

/* Read listed elements, and write them to shared memory side by side. */
template <typename element>
BANYAN_DEVICE void gather_listed(const changes_box &box, uint64_t block_first,
                                 const changes_row &row, uint32_t elems, uint32_t count,
                                 pack_cache *cache, unsigned lane)
{
    element *to = (element *)cache->words;
    for (uint32_t first = lane; first < count; first += VALUES_AT_ONCE * CHANGES_WARP) {
        element values[VALUES_AT_ONCE];
        BANYAN_DEVICE_UNROLL
        for (uint32_t k = 0; k < VALUES_AT_ONCE; k++) {
            uint32_t i = first + k * CHANGES_WARP;
            if (i >= count)
                continue;
            const char *from = row.left >= elems
                                   ? row.at + (int64_t)cache->positions[i] * row.stride
                                   : view_at(box.view, block_first + cache->positions[i]);
            values[k] = *(const element *)from;
        }
        BANYAN_DEVICE_UNROLL
        for (uint32_t k = 0; k < VALUES_AT_ONCE; k++)
            if (first + k * CHANGES_WARP < count)
                to[first + k * CHANGES_WARP] = values[k];
    }
}

/* Write the listed values of a block. */
BANYAN_DEVICE void write_listed(const changes_box &box, uint64_t block_first,
                                const changes_row &row, uint32_t elems, uint32_t count,
                                pack_cache *cache, unsigned char *to, unsigned lane)
{
    uint32_t elem_bytes = box.view.unit_bytes;
    switch (box.view.aligned ? elem_bytes : 0) {
    case 1:
        gather_listed<uint8_t>(box, block_first, row, elems, count, cache, lane);
        break;
    case 2:
        gather_listed<uint16_t>(box, block_first, row, elems, count, cache, lane);
        break;
    case 4:
        gather_listed<uint32_t>(box, block_first, row, elems, count, cache, lane);
        break;
    default:
        for (uint32_t i = lane; i < count; i += CHANGES_WARP)
            move_element(to + (uint64_t)i * elem_bytes,
                         view_at(box.view, block_first + cache->positions[i]), elem_bytes);
        return;
    }
    __syncwarp();
    store_words(cache->words, to, count * elem_bytes, lane);
}

/* Write the values of the changed elements, LISTED_MOST at a time. */
static __device__ void write_values(const changes_box &box, const lane_part &part,
                                    const positions &where, uint32_t elems, pack_cache *cache,
                                    unsigned char *to, unsigned lane)
{
    uint64_t block_first = part.first - lane * LANE_ELEMS;
    changes_row row = view_row(box.view, block_first);
    for (uint32_t first = 0; first < where.all_count; first += LISTED_MOST) {
        uint32_t left = where.all_count - first, count = left < LISTED_MOST ? left : LISTED_MOST;
        uint32_t number = where.values_before - first;
        __syncwarp();
        for_each_position(part, lane, [&](uint32_t position) {
            if (number < LISTED_MOST) /* not negative, either */
                cache->positions[number] = (uint16_t)position;
            number++;
        });
        __syncwarp();
        write_listed(box, block_first, row, elems, count, cache,
                     to + (uint64_t)first * box.view.unit_bytes, lane);
    }
    __syncwarp();
}

BANYAN_DEVICE uint32_t block_elems(const changes_box &box, uint64_t block)
{
    uint64_t left = box.view.count - block * DELTA_BLOCK;
    return left < DELTA_BLOCK ? (uint32_t)left : DELTA_BLOCK;
}

/* Write a block at `to`, or, if it is null, only measure it. Return its bytes. */
static __device__ uint64_t write_block(const changes_box &box, const uint64_t *const *maps,
                                       uint64_t block, unsigned char *to, pack_cache *cache,
                                       unsigned lane)
{
    uint32_t elems = block_elems(box, block), elem_bytes = box.view.unit_bytes;
    lane_part part = {};
    positions where = {};
    if (!box.whole) {
        part = read_bits(box, maps, block, elems, lane);
        where = count_positions(part, lane);
    }
    block_form form =
        choose_form(elems, elem_bytes, box.whole != 0, where.all_count, where.all_gap_bytes);
    if (!to)
        return form.bytes;
    unsigned char *values = to + DELTA_HEAD_BYTES + form.position_bytes;
    if (lane == 0) {
        uint32_t head = form.form << DELTA_COUNT_BITS | form.count;
        to[0] = (unsigned char)head;
        to[1] = (unsigned char)(head >> 8);
    }
    if (form.form == DELTA_WHOLE) {
        write_whole(box, block, elems, values, lane);
        return form.bytes;
    }
    if (form.form == DELTA_GAPS)
        put_gaps(part, where, cache, lane);
    else if (form.form == DELTA_BITMAP)
        put_bitmap(part, cache, lane);
    __syncwarp();
    store_words(cache->words, to + DELTA_HEAD_BYTES, form.position_bytes, lane);
    write_values(box, part, where, elems, cache, values, lane);
    return form.bytes;
}

static __device__ void measure_blocks(const changes_pack_args &args, unsigned lane)
{
    uint64_t i = 0;
    for (uint64_t number = view_warp(); number < args.blocks; number += view_warps()) {
        i += view_find(args.boxes + i, args.box_count - i, &changes_box::first_block, number);
        const changes_box &box = args.boxes[i];
        uint64_t bytes =
            write_block(box, args.maps, number - box.first_block, nullptr, nullptr, lane);
        if (lane == 0)
            args.block_bytes[number] = bytes;
    }
}

/* Return the bytes of the first `count` blocks of a piece. */
static __device__ uint64_t bytes_before(const changes_pack_args &args, const changes_box &box,
                                        const changes_piece &piece, uint64_t count, unsigned lane)
{
    if (!args.block_bytes) /* only a box's last block is not full */
        return count * (DELTA_HEAD_BYTES + (uint64_t)DELTA_BLOCK * box.view.unit_bytes);
    uint64_t bytes = 0;
    const uint64_t *from = args.block_bytes + box.first_block + piece.first;
    for (uint64_t k = lane; k < count; k += CHANGES_WARP)
        bytes += from[k];
    return warp_sum(bytes, lane);
}

static __device__ void write_pieces(const changes_pack_args &args, pack_cache *cache, unsigned lane)
{
    for (uint64_t number = view_warp(); number < args.piece_count * DELTA_PART_BLOCKS;
         number += view_warps()) {
        const changes_piece &piece = args.pieces[number / DELTA_PART_BLOCKS];
        uint64_t k = number % DELTA_PART_BLOCKS;
        if (k >= piece.count)
            continue;
        const changes_box &box = args.boxes[piece.box];
        unsigned char *to = args.to + piece.at + bytes_before(args, box, piece, k, lane);
        write_block(box, args.maps, piece.first + k, to, cache, lane);
    }
}

static __global__ void __launch_bounds__(CHANGES_THREADS_MAX, 5)
    measure_changes(const __grid_constant__ changes_pack_args args)
{
    measure_blocks(args, view_lane());
}

const void *changes_measure_kernel(void)
{
    return DEVICE_KERNEL(measure_changes, changes_pack_args);
}

static __global__ void __launch_bounds__(CHANGES_THREADS_MAX)
    pack_changes(const __grid_constant__ changes_pack_args args)
{
    pack_cache *cache = (pack_cache *)device_shared() + threadIdx.x / CHANGES_WARP;
    write_pieces(args, cache, view_lane());
}

const void *changes_pack_kernel(void)
{
    return DEVICE_KERNEL(pack_changes, changes_pack_args);
}

static __global__ void __launch_bounds__(CHANGES_THREADS_MAX)
    gather_elements(const __grid_constant__ changes_gather_args args)
{
    uint32_t elem_bytes = args.from.unit_bytes;
    uint64_t threads = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < args.count; i += threads)
        move_element(args.to + i * elem_bytes, view_at(args.from, args.first + i), elem_bytes);
}

const void *changes_gather_kernel(void)
{
    return DEVICE_KERNEL(gather_elements, changes_gather_args);
}
