/* Where nested loops stand that walk two sides together. */
#ifndef COPY_STRIDED_ODOMETER_H
#define COPY_STRIDED_ODOMETER_H

#include "copy/strided/loops.h"

/* Starts with no more than the loops and their count. */
typedef struct odometer {
    const strided_loop *loops; /* slowest first */
    int count;
    uint64_t index[STRIDED_MAX_LOOPS];
    int64_t to, from; /* bytes from where the two sides start */
} odometer;

/* The next iteration; false after the last one. */
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
