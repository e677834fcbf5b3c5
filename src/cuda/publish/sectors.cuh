/* Exchange blocks whose elements lie in whole aligned sectors, the units of a GPU's memory.
 *
 * The memory takes whole sectors sooner than parts of them. So two lanes that are neighbours read
 * and write both units of 16 bytes of a sector. A warp keeps the values of its block in shared
 * memory, and loads and stores them as words. */
#ifndef CUDA_PUBLISH_SECTORS_CUH
#define CUDA_PUBLISH_SECTORS_CUH

#include "cuda/publish/block.cuh"
#include "cuda/publish/words.cuh"

#define UNIT 16   /* bytes */
#define AT_ONCE 4 /* units or words of a lane */
#define GROUP_BYTES (AT_ONCE * CHANGES_WARP * UNIT)
#define GAPS_AT_ONCE 8 /* of a lane */
#define LISTED_MOST (GAPS_AT_ONCE * CHANGES_WARP)
#define NOWHERE UINT32_MAX

/* Shared memory of a warp. */
typedef struct sector_cache {
    uint32_t values[GROUP_BYTES / 4 + 4];
    union {
        uint16_t positions[LISTED_MOST];
        struct {
            uint32_t words[DELTA_BLOCK / 32];  /* of the bitmap */
            uint16_t before[DELTA_BLOCK / 32]; /* changed elements before each word */
        } bitmap;
    };
} sector_cache;

static_assert(sizeof(sector_cache) == CHANGES_CACHE_BYTES, "the launch reserves this much");
static_assert(LISTED_MOST * 4 <= GROUP_BYTES, "the values of a list are there at once");

/* ---- values ---- */

/* Load values into shared memory, from the lane's first word on. */
BANYAN_DEVICE void load_values(sector_cache *cache, const unsigned char *from, uint32_t bytes,
                               unsigned lane)
{
    BANYAN_DEVICE_LOOP
    for (uint32_t i = lane; 4 * i < bytes; i += AT_ONCE * CHANGES_WARP) {
        uint32_t words[AT_ONCE];
        BANYAN_DEVICE_UNROLL
        for (uint32_t k = 0; k < AT_ONCE; k++)
            words[k] = word_at(from, bytes, i + k * CHANGES_WARP);
        BANYAN_DEVICE_UNROLL
        for (uint32_t k = 0; k < AT_ONCE; k++)
            if (4 * (i + k * CHANGES_WARP) < bytes)
                cache->values[i + k * CHANGES_WARP] = words[k];
    }
}

/* ---- gaps ---- */

/* List the positions of changes in shared memory, from LISTED_MOST bytes of gaps. `*position` is
 * one behind the last change before them. Return the number of changes. */
BANYAN_DEVICE uint32_t list_positions(const unsigned char *gaps, uint32_t bytes, uint32_t *position,
                                      sector_cache *cache, unsigned lane)
{
    uint32_t word[2], sum = 0, i = GAPS_AT_ONCE * lane;
    word[0] = word_at(gaps, bytes, 2 * lane);
    word[1] = word_at(gaps, bytes, 2 * lane + 1);
    /* In one word: changes up to here, of 12 bits, and positions. */
    BANYAN_DEVICE_UNROLL
    for (uint32_t k = 0; k < GAPS_AT_ONCE; k++) {
        uint32_t gap = word[k / 4] >> 8 * (k % 4) & 0xff;
        uint32_t step = gap < DELTA_LONG_GAP ? (gap + 1) << 12 | 1 : gap << 12;
        sum += i + k < bytes ? step : 0;
    }
    uint32_t sums = warp_sum_up_to(sum, lane), before = sums - sum;
    uint32_t at = *position + (before >> 12), number = before & 0xfff;
    BANYAN_DEVICE_UNROLL
    for (uint32_t k = 0; k < GAPS_AT_ONCE; k++) {
        uint32_t gap = word[k / 4] >> 8 * (k % 4) & 0xff;
        at += gap;
        if (i + k < bytes && gap < DELTA_LONG_GAP)
            cache->positions[number++] = (uint16_t)at++;
    }
    sums = __shfl_sync(ALL_LANES, sums, CHANGES_WARP - 1);
    *position += sums >> 12;
    return sums & 0xfff;
}

/* Exchange a value with the bytes of a unit from `byte` on. */
template <typename element>
BANYAN_DEVICE void exchange_value(uint4 *unit, uint32_t byte, element *value)
{
    const uint32_t mask = UINT32_MAX >> (32 - 8 * sizeof(element));
    uint32_t word = byte / 4, shift = 8 * (byte % 4);
    uint32_t high = word & 1 ? unit->w : unit->z, low = word & 1 ? unit->y : unit->x;
    uint32_t before = word & 2 ? high : low;
    uint32_t after = (before & ~(mask << shift)) | (uint32_t)*value << shift;
    *value = (element)(before >> shift);
    unit->x = word == 0 ? after : unit->x;
    unit->y = word == 1 ? after : unit->y;
    unit->z = word == 2 ? after : unit->z;
    unit->w = word == 3 ? after : unit->w;
}

/* The bytes of a change in its block. */
template <typename element>
BANYAN_DEVICE uint32_t listed_byte(const sector_cache *cache, uint32_t i)
{
    return cache->positions[i] * (uint32_t)sizeof(element);
}

/* Exchange listed changes. Two lanes have the sector of a change, if it is the first one there. */
template <typename element, bool in_row>
BANYAN_DEVICE void exchange_sectors(const swap_block &block, sector_cache *cache, uint32_t count,
                                    unsigned lane)
{
    BANYAN_DEVICE_LOOP
    for (uint32_t first = lane / 2; first < count; first += AT_ONCE * CHANGES_WARP / 2) {
        uint32_t place[AT_ONCE];
        uint4 unit[AT_ONCE];
        BANYAN_DEVICE_UNROLL
        for (uint32_t k = 0; k < AT_ONCE; k++) {
            uint32_t i = first + k * CHANGES_WARP / 2, sector = NOWHERE;
            if (i < count)
                sector = listed_byte<element>(cache, i) / CHANGES_SECTOR;
            if (i > 0 && i < count && listed_byte<element>(cache, i - 1) / CHANGES_SECTOR == sector)
                sector = NOWHERE;
            place[k] = sector == NOWHERE ? NOWHERE : sector * CHANGES_SECTOR + lane % 2 * UNIT;
            unit[k] = make_uint4(0, 0, 0, 0);
            if (place[k] != NOWHERE)
                unit[k] = *(const uint4 *)block_at<element, in_row>(block, place[k]);
        }
        BANYAN_DEVICE_UNROLL
        for (uint32_t k = 0; k < AT_ONCE; k++) {
            if (place[k] != NOWHERE) {
                uint32_t i = first + k * CHANGES_WARP / 2;
                uint32_t byte = listed_byte<element>(cache, i);
                BANYAN_DEVICE_LOOP
                do {
                    if (byte / UNIT == place[k] / UNIT)
                        exchange_value(&unit[k], byte % UNIT, (element *)cache->values + i);
                    i++;
                    byte = i < count ? listed_byte<element>(cache, i) : NOWHERE;
                } while (byte / CHANGES_SECTOR == place[k] / CHANGES_SECTOR);
                *(uint4 *)block_at<element, in_row>(block, place[k]) = unit[k];
            }
        }
    }
}

template <typename element, bool in_row>
BANYAN_DEVICE void exchange_gaps(const swap_block &block, sector_cache *cache, unsigned lane)
{
    uint32_t left = block.count, position = 0;
    uint32_t gap_bytes = (uint32_t)block.bytes - left * (uint32_t)sizeof(element);
    unsigned char *gaps = block.at, *values = gaps + gap_bytes;
    BANYAN_DEVICE_LOOP
    while (left > 0 && gap_bytes > 0) {
        uint32_t most = left < LISTED_MOST ? left : LISTED_MOST;
        uint32_t some = gap_bytes < LISTED_MOST ? gap_bytes : LISTED_MOST;
        load_values(cache, values, most * (uint32_t)sizeof(element), lane);
        uint32_t count = list_positions(gaps, some, &position, cache, lane);
        __syncwarp();
        exchange_sectors<element, in_row>(block, cache, count, lane);
        __syncwarp();
        store_words(cache->values, values, count * (uint32_t)sizeof(element), lane);
        __syncwarp();
        gaps += some;
        gap_bytes -= some;
        values += (uint64_t)count * sizeof(element);
        left -= count;
    }
}

/* ---- bitmaps, and blocks that have all elements ---- */

/* Load the bitmap, and count the elements before each of its words. */
BANYAN_DEVICE void load_bitmap(const swap_block &block, uint32_t bytes, sector_cache *cache,
                               unsigned lane)
{
    uint32_t words[AT_ONCE], sum = 0;
    BANYAN_DEVICE_UNROLL
    for (uint32_t k = 0; k < AT_ONCE; k++)
        words[k] = word_at(block.at, bytes, lane + k * CHANGES_WARP);
    BANYAN_DEVICE_UNROLL
    for (uint32_t k = 0; k < AT_ONCE; k++) {
        uint32_t i = lane + k * CHANGES_WARP;
        if (bytes > 4 * i && bytes < 4 * i + 4)
            words[k] &= (1u << 8 * (bytes - 4 * i)) - 1;
        uint32_t count = (uint32_t)__popc(words[k]), sums = warp_sum_up_to(count, lane);
        cache->bitmap.words[i] = words[k];
        cache->bitmap.before[i] = (uint16_t)(sum + sums - count);
        sum += __shfl_sync(ALL_LANES, sums, CHANGES_WARP - 1);
    }
    __syncwarp();
}

/* Exchange the elements of a unit whose bits are set with values that lie side by side. */
template <typename element>
BANYAN_DEVICE void exchange_unit(uint4 *unit, uint32_t bits, element *values)
{
    const uint32_t each = UNIT / (uint32_t)sizeof(element), in_word = 4 / (uint32_t)sizeof(element);
    const uint32_t width = 8 * (uint32_t)sizeof(element), mask = UINT32_MAX >> (32 - width);
    uint32_t words[4] = {unit->x, unit->y, unit->z, unit->w};
    uint32_t i = 0;
    BANYAN_DEVICE_UNROLL
    for (uint32_t w = 0; w < 4; w++) {
        uint32_t after = words[w], first = i;
        BANYAN_DEVICE_UNROLL
        for (uint32_t k = 0; k < in_word; k++)
            if (bits >> (w * in_word + k) & 1)
                after = (after & ~(mask << k * width)) | (uint32_t)values[i++] << k * width;
        i = first;
        BANYAN_DEVICE_UNROLL
        for (uint32_t k = 0; k < in_word; k++)
            if (bits >> (w * in_word + k) & 1)
                values[i++] = (element)(words[w] >> k * width);
        words[w] = after;
    }
    static_assert(each * width == 128, "a unit has whole elements");
    *unit = make_uint4(words[0], words[1], words[2], words[3]);
}

/* Load units from element `first` on, with the bits of their elements that have changed, and the
 * number of changed elements from `first` to each unit. `first_value`: of those before. */
template <typename element, bool in_row>
BANYAN_DEVICE void load_group(const swap_block &block, uint32_t first, uint32_t first_value,
                              const sector_cache *cache, unsigned lane, uint4 *unit, uint32_t *bits,
                              uint32_t *index)
{
    const uint32_t each = UNIT / (uint32_t)sizeof(element);
    BANYAN_DEVICE_UNROLL
    for (uint32_t k = 0; k < AT_ONCE; k++) {
        uint32_t at = first + (k * CHANGES_WARP + lane) * each; /* the unit's first element */
        bits[k] = index[k] = 0;
        if (at < block.elems) {
            uint32_t word = cache->bitmap.words[at / 32], below = (1u << at % 32) - 1;
            bits[k] = word >> at % 32 & ((1u << each) - 1);
            index[k] = cache->bitmap.before[at / 32] + (uint32_t)__popc(word & below) - first_value;
        }
        uint32_t other = __shfl_sync(ALL_LANES, bits[k], (int)(lane ^ 1));
        bits[k] |= other ? 1u << 31 : 0; /* the sector has changed */
        unit[k] = make_uint4(0, 0, 0, 0);
        if (bits[k])
            unit[k] =
                *(const uint4 *)block_at<element, in_row>(block, at * (uint32_t)sizeof(element));
    }
}

template <typename element, bool in_row>
BANYAN_DEVICE void exchange_bitmap(const swap_block &block, sector_cache *cache, unsigned lane)
{
    const uint32_t each = UNIT / (uint32_t)sizeof(element);
    const uint32_t in_group = GROUP_BYTES / (uint32_t)sizeof(element);
    uint32_t bitmap_bytes = (block.elems + 7) / 8;
    unsigned char *values = block.at + bitmap_bytes;
    load_bitmap(block, bitmap_bytes, cache, lane);
    BANYAN_DEVICE_LOOP
    for (uint32_t first = 0; first < block.elems; first += in_group) {
        uint32_t end = first + in_group, first_value = cache->bitmap.before[first / 32];
        uint32_t end_value = end < block.elems ? cache->bitmap.before[end / 32] : block.count;
        uint32_t bytes = (end_value - first_value) * (uint32_t)sizeof(element);
        uint32_t bits[AT_ONCE], index[AT_ONCE];
        uint4 unit[AT_ONCE];
        load_group<element, in_row>(block, first, first_value, cache, lane, unit, bits, index);
        load_values(cache, values, bytes, lane);
        __syncwarp();
        BANYAN_DEVICE_UNROLL
        for (uint32_t k = 0; k < AT_ONCE; k++) {
            uint32_t at = first + (k * CHANGES_WARP + lane) * each;
            exchange_unit(&unit[k], bits[k], (element *)cache->values + index[k]);
            if (bits[k])
                *(uint4 *)block_at<element, in_row>(block, at * (uint32_t)sizeof(element)) =
                    unit[k];
        }
        __syncwarp();
        store_words(cache->values, values, bytes, lane);
        values += bytes;
        __syncwarp();
    }
}

template <typename element, bool in_row>
BANYAN_DEVICE void exchange_whole(const swap_block &block, sector_cache *cache, unsigned lane)
{
    uint32_t all = block.elems * (uint32_t)sizeof(element);
    BANYAN_DEVICE_LOOP
    for (uint32_t first = 0; first < all; first += GROUP_BYTES) {
        uint32_t bytes = all - first < GROUP_BYTES ? all - first : GROUP_BYTES;
        uint4 unit[AT_ONCE];
        BANYAN_DEVICE_UNROLL
        for (uint32_t k = 0; k < AT_ONCE; k++) {
            uint32_t at = (k * CHANGES_WARP + lane) * UNIT;
            unit[k] = make_uint4(0, 0, 0, 0);
            if (at < bytes)
                unit[k] = *(const uint4 *)block_at<element, in_row>(block, first + at);
        }
        load_values(cache, block.at + first, bytes, lane);
        __syncwarp();
        BANYAN_DEVICE_UNROLL
        for (uint32_t k = 0; k < AT_ONCE; k++) {
            uint32_t at = (k * CHANGES_WARP + lane) * UNIT;
            if (at < bytes) {
                uint4 *value = (uint4 *)((char *)cache->values + at);
                *(uint4 *)block_at<element, in_row>(block, first + at) = *value;
                *value = unit[k];
            }
        }
        __syncwarp();
        store_words(cache->values, block.at + first, bytes, lane);
        __syncwarp();
    }
}

template <typename element, bool in_row>
BANYAN_DEVICE void exchange_block_of_sectors(const swap_block &block, sector_cache *cache,
                                             unsigned lane)
{
    if (block.form == DELTA_GAPS)
        exchange_gaps<element, in_row>(block, cache, lane);
    else if (block.form == DELTA_BITMAP)
        exchange_bitmap<element, in_row>(block, cache, lane);
    else if (block.form == DELTA_WHOLE)
        exchange_whole<element, in_row>(block, cache, lane);
}

#endif
