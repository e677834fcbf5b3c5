/* The changed elements of a box as bytes.
 *
 * The elements of a box, in row-major order, are divided into blocks of 4,096. A stream has the
 * blocks one after another, each in the smallest of four forms:
 *
 *     head     2 bytes, little-endian: form << 13 | number of elements that follow
 *     NONE     no element has changed
 *     GAPS     for each changed element one byte, the number of unchanged ones before it, counted
 *              from the changed one before; 255: 255 unchanged ones, and the count goes on. Then
 *              the values.
 *     BITMAP   one bit for each element of the block, the lowest bit of a byte first; the values
 *     WHOLE    the values of all elements
 *
 * Values are exchanged with the elements, not copied to them: the stream then has the values from
 * before, and a second exchange undoes the first. */
#ifndef PUBLISH_DELTA_STREAM_H
#define PUBLISH_DELTA_STREAM_H

#include "copy/strided/strided.h"
#include "core/containers.h"
#include "publish/delta/form.h"

/* Return the number of blocks of a box. */
static inline uint64_t delta_blocks(uint64_t elems)
{
    return (elems + DELTA_BLOCK - 1) / DELTA_BLOCK;
}

/* Return the largest number of bytes of a block. */
static inline size_t delta_block_bytes_most(size_t elem_bytes)
{
    return 2 + DELTA_BLOCK * elem_bytes;
}

/* Where the elements of a box lie, and which of them have changed. */
typedef struct delta_source {
    strided_view box; /* in `memory` */
    /* A dense tensor, of whose elements the maps have a bit each (changes.h). An element has
     * changed if its bit is set in one of `map_count` maps. */
    const char *memory;
    const uint64_t *const *maps;
    size_t map_count;
    bool whole; /* send all elements; the maps are not read */
} delta_source;

/* Append blocks [first, first + count) of a box, which exist, to a stream. Return the number of
 * elements in them. */
uint64_t delta_write(const delta_source *source, uint64_t first, uint64_t count, bytes_writer *out);

/* Check that `bytes` bytes are blocks [first, first + count) of a box of `elems` elements, and no
 * more. False if they are not. `*changed` receives the number of elements in them, and `ends`
 * (NULL: not wanted) where each block ends, counted from the stream's start. */
bool delta_check(const void *stream, size_t bytes, uint64_t elems, size_t elem_bytes,
                 uint64_t first, uint64_t count, uint64_t *changed, uint64_t *ends);

/* Return the bytes of a block in front of its values, of which `*count` receives the number;
 * SIZE_MAX if `bytes` bytes do not begin with a valid head and valid positions. `elems`: of the
 * block. */
size_t delta_positions(const unsigned char *block, size_t bytes, uint64_t elems, uint64_t *count);

/* Exchange the values in blocks [first, first + count), which delta_check has accepted, with the
 * elements of the box. */
void delta_swap(const strided_view *box, uint64_t first, uint64_t count, void *stream);

#endif
