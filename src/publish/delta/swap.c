#include <string.h>

#include "copy/strided/cursor.h"
#include "publish/delta/stream.h"

/* ---- check ---- */

#define EACH_BYTE UINT64_C(0x0101010101010101)
#define EACH_PAIR UINT64_C(0x00ff00ff00ff00ff)

/* Add bytes to a sum. Return the number of long gaps in them. */
static size_t sum_gaps(const unsigned char *gaps, size_t bytes, uint64_t *sum)
{
    size_t long_gaps = 0, i = 0;
    while (bytes - i >= sizeof(uint64_t)) {
        uint64_t pairs = 0, word; /* four sums of 16 bits, each of at most 256 bytes */
        size_t end = bytes - i < 1024 ? bytes : i + 1024;
        for (; end - i >= sizeof word; i += sizeof word) {
            memcpy(&word, gaps + i, sizeof word);
            pairs += (word & EACH_PAIR) + (word >> 8 & EACH_PAIR);
            /* The highest bit of a byte stays if all others are set, too. */
            uint64_t full = word & ((word & 127 * EACH_BYTE) + EACH_BYTE) & 128 * EACH_BYTE;
            long_gaps += (size_t)((full >> 7) * EACH_BYTE >> 56);
        }
        *sum += (pairs & 0xffff) + (pairs >> 16 & 0xffff) + (pairs >> 32 & 0xffff) + (pairs >> 48);
    }
    for (; i < bytes; i++) {
        *sum += gaps[i];
        long_gaps += gaps[i] == DELTA_LONG_GAP;
    }
    return long_gaps;
}

/* Return the bytes of a block's positions; SIZE_MAX if they are not valid. Positions grow, so they
 * are valid if the last one is. */
static size_t check_gaps(const unsigned char *gaps, size_t bytes, uint64_t elems, uint64_t count)
{
    uint64_t sum = 0, missing = count; /* each needs one more byte at least */
    size_t used = 0;
    while (missing > 0) {
        if (missing > bytes - used)
            return SIZE_MAX;
        size_t some = missing;
        missing = sum_gaps(gaps + used, some, &sum);
        used += some;
        if (sum + count > elems)
            return SIZE_MAX;
    }
    return used;
}

static size_t check_bitmap(const unsigned char *bitmap, size_t bytes, uint64_t elems,
                           uint64_t count)
{
    size_t used = delta_bitmap_bytes(elems), i = 0;
    uint64_t found = 0, word;
    if (used > bytes)
        return SIZE_MAX;
    for (; used - i >= sizeof word; i += sizeof word) {
        memcpy(&word, bitmap + i, sizeof word);
        found += (uint64_t)__builtin_popcountll(word);
    }
    for (; i < used; i++)
        found += (uint64_t)__builtin_popcount(bitmap[i]);
    bool outside = elems % 8 != 0 && bitmap[used - 1] >> elems % 8 != 0;
    return found == count && !outside ? used : SIZE_MAX;
}

size_t delta_positions(const unsigned char *block, size_t bytes, uint64_t elems, uint64_t *values)
{
    uint64_t count;
    size_t positions = SIZE_MAX;
    if (bytes < DELTA_HEAD_BYTES)
        return SIZE_MAX;
    enum delta_form form = delta_head_read(block, &count);
    size_t left = bytes - DELTA_HEAD_BYTES;
    if (count > elems || (count == 0) != (form == DELTA_NONE))
        return SIZE_MAX;
    *values = count;
    if (form == DELTA_NONE)
        positions = 0;
    else if (form == DELTA_GAPS)
        positions = check_gaps(block + DELTA_HEAD_BYTES, left, elems, count);
    else if (form == DELTA_BITMAP)
        positions = check_bitmap(block + DELTA_HEAD_BYTES, left, elems, count);
    else if (form == DELTA_WHOLE && count == elems)
        positions = 0;
    return positions == SIZE_MAX ? SIZE_MAX : DELTA_HEAD_BYTES + positions;
}

/* Return the bytes of a block; SIZE_MAX if it is not valid. */
static size_t delta_check_block(const unsigned char *block, size_t bytes, uint64_t elems,
                                size_t elem_bytes, uint64_t *changed)
{
    uint64_t count;
    size_t positions = delta_positions(block, bytes, elems, &count);
    if (positions == SIZE_MAX || bytes - positions < count * elem_bytes)
        return SIZE_MAX;
    *changed += count;
    return positions + count * elem_bytes;
}

bool delta_check(const void *stream, size_t bytes, uint64_t elems, size_t elem_bytes,
                 uint64_t first, uint64_t count, uint64_t *changed, uint64_t *ends)
{
    const unsigned char *at = stream;
    *changed = 0;
    if (first > delta_blocks(elems) || count > delta_blocks(elems) - first)
        return false;
    for (uint64_t number = first; number < first + count; number++) {
        size_t used =
            delta_check_block(at, bytes, delta_block_elems(elems, number), elem_bytes, changed);
        if (used == SIZE_MAX)
            return false;
        at += used;
        bytes -= used;
        if (ends)
            ends[number - first] = (uint64_t)(at - (const unsigned char *)stream);
    }
    return bytes == 0;
}

/* ---- swap ---- */

#define SWAP(bytes)                                                                                \
    do {                                                                                           \
        unsigned char kept_[bytes];                                                                \
        memcpy(kept_, a, bytes);                                                                   \
        memcpy(a, b, bytes);                                                                       \
        memcpy(b, kept_, bytes);                                                                   \
    } while (0)

static inline void swap_element(char *a, unsigned char *b, size_t elem_bytes)
{
    switch (elem_bytes) { /* copies of a constant size are single instructions */
    case 1:
        SWAP(1);
        break;
    case 2:
        SWAP(2);
        break;
    case 4:
        SWAP(4);
        break;
    case 8:
        SWAP(8);
        break;
    default:
        for (size_t i = 0; i < elem_bytes; i++, a++, b++)
            SWAP(1);
    }
}

/* Exchange contiguous memory. */
static void swap_memory(char *a, unsigned char *b, size_t bytes)
{
    for (; bytes >= 64; bytes -= 64, a += 64, b += 64)
        SWAP(64);
    for (; bytes > 0; bytes--, a++, b++)
        SWAP(1);
}

/* A run of contiguous elements of a block; positions count from the block's first element. */
struct place {
    strided_cursor cursor; /* at the run's first element */
    uint64_t first, end;
};

static struct place place_at(const strided_cursor *cursor)
{
    return (struct place){*cursor, 0, strided_cursor_run(cursor)};
}

static void place_next(struct place *place)
{
    strided_cursor_advance(&place->cursor, place->end - place->first);
    place->first = place->end;
    place->end += strided_cursor_run(&place->cursor);
}

static inline char *place_find(struct place *place, uint64_t position, size_t elem_bytes)
{
    while (position >= place->end)
        place_next(place);
    return place->cursor.at + (position - place->first) * elem_bytes;
}

static void swap_whole(struct place *place, uint64_t elems, size_t elem_bytes,
                       unsigned char *values)
{
    for (uint64_t at = 0, end; at < elems; at = end) {
        char *to = place_find(place, at, elem_bytes);
        end = place->end < elems ? place->end : elems;
        swap_memory(to, values + at * elem_bytes, (end - at) * elem_bytes);
    }
}

static unsigned char *swap_gaps(struct place *place, uint64_t count, size_t elem_bytes,
                                unsigned char *gaps)
{
    unsigned char *values = gaps;
    for (uint64_t found = 0; found < count; found += *values++ != DELTA_LONG_GAP)
        ;
    for (uint64_t next = 0, found = 0; found < count; gaps++) {
        next += *gaps;
        if (*gaps == DELTA_LONG_GAP)
            continue;
        swap_element(place_find(place, next, elem_bytes), values + found * elem_bytes, elem_bytes);
        next++;
        found++;
    }
    return values;
}

static unsigned char *swap_bitmap(struct place *place, uint64_t elems, size_t elem_bytes,
                                  unsigned char *bitmap)
{
    size_t bytes = delta_bitmap_bytes(elems);
    unsigned char *values = bitmap + bytes, *value = values;
    for (size_t i = 0; i < bytes; i++) {
        for (unsigned bits = bitmap[i]; bits; bits &= bits - 1, value += elem_bytes) {
            uint64_t position = 8 * i + (uint64_t)__builtin_ctz(bits);
            swap_element(place_find(place, position, elem_bytes), value, elem_bytes);
        }
    }
    return values;
}

/* Exchange a block's values with the elements from the cursor on; return its end. */
static unsigned char *swap_block(const strided_cursor *cursor, uint64_t elems, size_t elem_bytes,
                                 unsigned char *block)
{
    uint64_t count;
    unsigned char *values = block + DELTA_HEAD_BYTES;
    struct place place = place_at(cursor);
    switch (delta_head_read(block, &count)) {
    case DELTA_GAPS:
        values = swap_gaps(&place, count, elem_bytes, values);
        break;
    case DELTA_BITMAP:
        values = swap_bitmap(&place, elems, elem_bytes, values);
        break;
    case DELTA_WHOLE:
        swap_whole(&place, elems, elem_bytes, values);
        break;
    case DELTA_NONE:
        break;
    }
    return values + count * elem_bytes;
}

void delta_swap(const strided_view *box, uint64_t first, uint64_t count, void *stream)
{
    unsigned char *at = stream;
    for (uint64_t number = first; number < first + count; number++) {
        strided_cursor cursor = strided_cursor_at(box, number * DELTA_BLOCK);
        at = swap_block(&cursor, delta_block_elems(box->elems, number), box->elem_bytes, at);
    }
}
