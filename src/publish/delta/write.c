#include <string.h>

#include "copy/strided/cursor.h"
#include "publish/delta/changes.h"
#include "publish/delta/stream.h"

/* A block that is being made. */
struct delta_maker {
    size_t elem_bytes;
    uint64_t elems, count, next; /* `next`: one behind the last changed element */
    size_t gap_bytes;
    unsigned char gaps[2 * DELTA_BLOCK];
    unsigned char bitmap[DELTA_BLOCK / 8];
    unsigned char *values; /* where they are written, with space for all elements */
};

/* Return the bits of 64 elements from `at` on. */
static uint64_t changed_at(const delta_source *source, uint64_t at)
{
    uint64_t word = at / CHANGES_BITS, shift = at % CHANGES_BITS, bits = 0;
    for (size_t i = 0; i < source->map_count; i++) {
        const uint64_t *map = source->maps[i] + word;
        bits |= map[0] >> shift;
        if (shift > 0)
            bits |= map[1] << (CHANGES_BITS - shift);
    }
    return bits;
}

static void add_element(struct delta_maker *block, uint64_t position, const char *value)
{
    uint64_t gap = position - block->next;
    for (; gap >= DELTA_LONG_GAP; gap -= DELTA_LONG_GAP)
        block->gaps[block->gap_bytes++] = DELTA_LONG_GAP;
    block->gaps[block->gap_bytes++] = (unsigned char)gap;
    block->bitmap[position / 8] |= (unsigned char)(1u << position % 8);
    unsigned char *to = block->values + block->count * block->elem_bytes;
    switch (block->elem_bytes) { /* copies of a constant size are single instructions */
    case 1:
        *to = (unsigned char)*value;
        break;
    case 2:
        memcpy(to, value, 2);
        break;
    case 4:
        memcpy(to, value, 4);
        break;
    default:
        memcpy(to, value, block->elem_bytes);
    }
    block->count++;
    block->next = position + 1;
}

/* Add the changed ones of `count` contiguous elements, of which the first has this position. */
static void add_run(const delta_source *source, struct delta_maker *block, const char *run,
                    uint64_t count, uint64_t position)
{
    uint64_t at = (uint64_t)(run - source->memory) / block->elem_bytes;
    for (uint64_t i = 0; i < count; i += CHANGES_BITS) {
        uint64_t bits = changed_at(source, at + i);
        if (count - i < CHANGES_BITS)
            bits &= (UINT64_C(1) << (count - i)) - 1;
        for (; bits; bits &= bits - 1) {
            uint64_t offset = i + (uint64_t)__builtin_ctzll(bits);
            add_element(block, position + offset, run + offset * block->elem_bytes);
        }
    }
}

/* Count the changed ones of `count` contiguous elements from `at` on. */
static uint64_t count_changed(const delta_source *source, uint64_t at, uint64_t count)
{
    uint64_t found = 0, i = 0;
    for (; count - i >= CHANGES_BITS; i += CHANGES_BITS)
        found += (uint64_t)__builtin_popcountll(changed_at(source, at + i));
    if (i < count)
        found += (uint64_t)__builtin_popcountll(changed_at(source, at + i) &
                                                ((UINT64_C(1) << (count - i)) - 1));
    return found;
}

/* True if so many elements have changed that a block of them is whole: then their positions need
 * not be found, and the cursor advances behind it. The first ones tell whether counting all is
 * worth it. */
static bool is_dense(const delta_source *source, strided_cursor *from, uint64_t elems)
{
    strided_cursor cursor = *from;
    size_t elem_bytes = source->box.elem_bytes;
    uint64_t count = 0;
    for (uint64_t at = 0, run; at < elems; at += run) {
        uint64_t first = (uint64_t)(cursor.at - source->memory) / elem_bytes;
        run = strided_cursor_run(&cursor);
        if (run > elems - at)
            run = elems - at;
        count += count_changed(source, first, run);
        if (at == 0 && count < run * 3 / 4)
            return false;
        strided_cursor_advance(&cursor, run);
    }
    uint64_t positions = delta_bitmap_bytes(elems);
    if (count < positions) /* gaps take a byte each at least */
        positions = count;
    if (positions + count * elem_bytes < elems * elem_bytes)
        return false;
    *from = cursor;
    return true;
}

/* Put the block into its smallest form. The values are in their place for the form GAPS or WHOLE.
 * Return its end. */
static unsigned char *finish_block(const struct delta_maker *block, unsigned char *head,
                                   unsigned char *values)
{
    size_t value_bytes = block->count * block->elem_bytes;
    size_t bitmap_bytes = delta_bitmap_bytes(block->elems);
    bool gaps = block->gap_bytes <= bitmap_bytes;
    size_t position_bytes = gaps ? block->gap_bytes : bitmap_bytes;
    delta_head_write(head, gaps ? DELTA_GAPS : DELTA_BITMAP, block->count);
    memcpy(head + DELTA_HEAD_BYTES, gaps ? block->gaps : block->bitmap, position_bytes);
    memcpy(head + DELTA_HEAD_BYTES + position_bytes, values, value_bytes);
    return head + DELTA_HEAD_BYTES + position_bytes + value_bytes;
}

/* Write one block at `to`, which has space for the largest. The cursor advances behind it. */
static unsigned char *delta_write_block(const delta_source *source, uint64_t number,
                                        strided_cursor *cursor, uint64_t *changed,
                                        unsigned char *to)
{
    unsigned char values[DELTA_VALUES_MOST];
    struct delta_maker block; /* large: `gaps` stays as it is */
    uint64_t first = number * DELTA_BLOCK;
    block.elem_bytes = source->box.elem_bytes;
    block.elems = delta_block_elems(source->box.elems, number);
    block.count = block.next = block.gap_bytes = 0;
    block.values = values;
    memset(block.bitmap, 0, sizeof block.bitmap);
    size_t whole_bytes = block.elems * block.elem_bytes;
    bool whole = source->whole || sizeof values < whole_bytes;
    whole = whole || is_dense(source, cursor, block.elems);
    for (uint64_t at = 0, run; at < block.elems && !whole; at += run) {
        run = strided_cursor_run(cursor);
        if (run > block.elems - at)
            run = block.elems - at;
        add_run(source, &block, cursor->at, run, at);
        strided_cursor_advance(cursor, run);
    }
    size_t positions = delta_bitmap_bytes(block.elems);
    if (block.gap_bytes < positions)
        positions = block.gap_bytes;
    if (whole || positions + block.count * block.elem_bytes >= whole_bytes) {
        delta_head_write(to, DELTA_WHOLE, block.elems);
        strided_pack(to + DELTA_HEAD_BYTES, &source->box, first, block.elems);
        *changed += block.elems;
        return to + DELTA_HEAD_BYTES + whole_bytes;
    }
    *changed += block.count;
    if (block.count > 0)
        return finish_block(&block, to, values);
    delta_head_write(to, DELTA_NONE, 0);
    return to + DELTA_HEAD_BYTES;
}

uint64_t delta_write(const delta_source *source, uint64_t first, uint64_t count, bytes_writer *out)
{
    uint64_t changed = 0;
    size_t most = delta_block_bytes_most(source->box.elem_bytes);
    strided_cursor cursor = strided_cursor_at(&source->box, first * DELTA_BLOCK);
    for (uint64_t number = first; number < first + count && !out->failed; number++) {
        if (!array_reserve(out, most)) {
            out->failed = true;
            break;
        }
        unsigned char *to = out->data + out->count;
        out->count += (size_t)(delta_write_block(source, number, &cursor, &changed, to) - to);
    }
    return changed;
}
