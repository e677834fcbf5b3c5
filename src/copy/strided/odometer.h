/* Position of nested loops that walk two sides at once. */
#ifndef COPY_STRIDED_ODOMETER_H
#define COPY_STRIDED_ODOMETER_H

#include "copy/strided/loops.h"

/* Initialize the loops and their count only. */
typedef struct odometer {
    const strided_loop *loops; /* slowest first */
    int count;
    uint64_t index[STRIDED_MAX_LOOPS];
    int64_t to, from; /* byte offsets from the starts of the two sides */
} odometer;

/* Advance to the next iteration; false after the last one. */
static inline bool odometer_step(odometer *at)
{
    for (int i = at->count - 1; i >= 0; i--) {
        const strided_loop *loop = &at->loops[i];
        at->to += loop->to;
        at->from += loop->from;
        if (++at->index[i] < loop->extent)
            return true;
        at->to -= (int64_t)loop->extent * loop->to;
        at->from -= (int64_t)loop->extent * loop->from;
        at->index[i] = 0;
    }
    return false;
}

#endif
