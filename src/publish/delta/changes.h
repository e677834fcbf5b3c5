/* Find the elements of a tensor that differ from a copy of it. */
#ifndef PUBLISH_DELTA_CHANGES_H
#define PUBLISH_DELTA_CHANGES_H

#include "copy/strided/strided.h"

/* Elements of one word of a map of changes. */
#define CHANGES_BITS 64

/* Return the number of 64-bit words of a map of `elems` elements. It has a bit for each element, in
 * row-major order, the lowest bit of a word first, and one word more, so that 64 bits can be read
 * from any element on. */
static inline uint64_t changes_words(uint64_t elems)
{
    return (elems + CHANGES_BITS - 1) / CHANGES_BITS + 1;
}

/* Compare the bits of every element of `live` with those of `kept`, a dense copy of it in row-major
 * order. Where they differ, set the element's bit in `map` and update `kept`. `map` is zeroed
 * before. Return the number of elements that differ. One pass: it reads both, and writes the lines
 * of `kept` in which something differs. */
uint64_t changes_find(const strided_view *live, void *kept, uint64_t *map);

/* As changes_find, for elements [first, first + count) alone. Threads may do this for ranges of one
 * tensor at the same time, if each begins at a multiple of CHANGES_BITS. */
uint64_t changes_find_some(const strided_view *live, void *kept, uint64_t *map, uint64_t first,
                           uint64_t count);

/* Set the bits of `into` that `from` has. Both have `words` words. */
void changes_merge(uint64_t *into, const uint64_t *from, uint64_t words);

#endif
