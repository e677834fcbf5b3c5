/* Reductions over elements. */
#ifndef CHANNEL_REDUCE_H
#define CHANNEL_REDUCE_H

#include <banyan/core.h>

/* destination = sources[0] ⊕ sources[1] ⊕ …, element by element and in that order. Every processor
 * computes the same bits.
 *
 * Sums and products of 16- and 8-bit floats are accumulated in f32 and rounded once, to nearest
 * even. What is too large becomes infinity; in e4m3, which has none, the largest value with its
 * sign. Integers wrap around. A NaN in any source, or infinities that have no sum, or no product
 * with zero, make the element NaN: positive, quiet, without payload. -0 is less than +0.
 *
 * `destination` may be one of the sources, and must not overlap with them otherwise. Any alignment.
 * `count` ≥ 1. */
typedef void (*reduce_fn)(void *destination, const void *const *sources, uint32_t count,
                          size_t elems);

/* F32, F16, BF16, F8_E4M3, F8_E5M2, I32, U32, I64, U8; NULL for other types. Any thread. */
reduce_fn reduce_find(DLDataType dtype, banyan_reduce_op op);

#endif
