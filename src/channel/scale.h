/* Elements times or divided by a number. */
#ifndef CHANNEL_SCALE_H
#define CHANNEL_SCALE_H

#include <banyan/core.h>

/* to[i] = from[i] × factor, of the types of floats that reduce_find has, in f32 and rounded as sums
 * are (reduce.h). Every processor computes the same bits. `to` may be `from`, and must not overlap
 * with it otherwise. Any alignment, any thread. */
void scale_floats(void *to, const void *from, size_t elems, DLDataType dtype, float factor);

/* to[i] = from[i] × whole, which wraps around, or from[i] ÷ whole, rounded toward zero. `whole` ≥ 1
 * divides. The types are the integers of reduce_find; otherwise as scale_floats. */
void scale_integers(void *to, const void *from, size_t elems, DLDataType dtype, int64_t whole,
                    bool divides);

#endif
