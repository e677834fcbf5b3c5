/* Reductions over elements. */
#ifndef CHANNEL_REDUCE_H
#define CHANNEL_REDUCE_H

#include <banyan/core.h>

/* destination = sources[0] ⊕ sources[1] ⊕ …, element by element and in that order, whatever the
 * machine. Sums of 16- and 8-bit floats are accumulated in f32 and rounded once, to nearest even;
 * integers wrap around; a NaN in any source makes the element NaN. `destination` may be one of the
 * sources, and must not overlap with them otherwise. `count` ≥ 1. */
typedef void (*reduce_fn)(void *destination, const void *const *sources, uint32_t count,
                          size_t elems);

/* NULL for a type that cannot be reduced. Any thread. */
reduce_fn reduce_find(DLDataType dtype, banyan_reduce_op op);

#endif
