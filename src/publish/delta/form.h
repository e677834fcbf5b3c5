/* The forms of a block. Kernels use the constants, too. */
#ifndef PUBLISH_DELTA_FORM_H
#define PUBLISH_DELTA_FORM_H

#include <stdint.h>

#define DELTA_BLOCK 4096 /* elements */

/* Blocks of a part, the unit of what travels: a part without changes takes no bytes. */
#define DELTA_PART_BLOCKS 64

enum delta_form { DELTA_NONE, DELTA_GAPS, DELTA_BITMAP, DELTA_WHOLE };

#define DELTA_HEAD_BYTES 2
#define DELTA_COUNT_BITS 13
#define DELTA_LONG_GAP 255
/* A block with more bytes of elements is always whole. */
#define DELTA_VALUES_MOST (DELTA_BLOCK * 16)

static inline void delta_head_write(unsigned char *to, enum delta_form form, uint64_t count)
{
    unsigned head = (unsigned)form << DELTA_COUNT_BITS | (unsigned)count;
    to[0] = (unsigned char)head;
    to[1] = (unsigned char)(head >> 8);
}

static inline enum delta_form delta_head_read(const unsigned char *from, uint64_t *count)
{
    unsigned head = from[0] | (unsigned)from[1] << 8;
    *count = head & ((1u << DELTA_COUNT_BITS) - 1);
    return (enum delta_form)(head >> DELTA_COUNT_BITS);
}

/* Return the number of elements of a block of a box. */
static inline uint64_t delta_block_elems(uint64_t elems, uint64_t block)
{
    uint64_t left = elems - block * DELTA_BLOCK;
    return left < DELTA_BLOCK ? left : DELTA_BLOCK;
}

static inline uint64_t delta_bitmap_bytes(uint64_t elems)
{
    return (elems + 7) / 8;
}

#endif
