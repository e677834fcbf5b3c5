/* Loops over two strided views at once, in the order that suits the memory, not the elements. */
#ifndef COPY_STRIDED_LOOPS_H
#define COPY_STRIDED_LOOPS_H

#include "copy/strided/view.h"

/* Two shapes of 8 dimensions split each other into 15 at most. */
#define STRIDED_MAX_LOOPS (2 * BANYAN_MAX_DIMS)

typedef struct strided_loop {
    uint64_t extent;
    int64_t to, from; /* strides in bytes */
} strided_loop;

/* A box of elements with equal shape on both sides: row-major, slowest loop first. */
typedef struct strided_grid {
    size_t elem_bytes;
    int count;
    strided_loop loop[STRIDED_MAX_LOOPS];
} strided_grid;

/* The input of strided_move_run: runs of contiguous bytes inside loops. */
typedef struct strided_move {
    char *to;
    const char *from;
    uint64_t run_bytes;
    int count;
    const strided_loop *loops; /* slowest first */
} strided_move;

/* Find the coarsest shape in which both views can be walked. False when there is none: the shapes
 * cut their elements into rows that do not nest. */
bool strided_grid_of(const strided_view *to, const strided_view *from, strided_grid *grid);

/* Plan loops for the whole box, reordered and merged so that writes go forward in the longest runs.
 * `to` and `from` are the addresses of element 0; `loops` has space for grid->count and becomes
 * part of `move`. */
void strided_move_plan(const strided_grid *grid, char *to, const char *from, strided_loop *loops,
                       strided_move *move);

uint64_t strided_move_bytes(const strided_move *move);

/* Run the move. `streaming`: written lines need not stay in the caches; call strided_fence before
 * you signal another process. */
void strided_move_run(const strided_move *move, bool streaming);

/* Make data that was written past the caches visible to other processes. */
void strided_fence(void);

/* Position of nested loops that walk two sides at once. */

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
