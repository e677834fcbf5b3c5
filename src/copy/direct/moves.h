/* Moves between addresses of this process, cut so that several ranks can share them. */
#ifndef COPY_DIRECT_MOVES_H
#define COPY_DIRECT_MOVES_H

#include "copy/strided/loops.h"
#include "core/containers.h"

/* Elements [first, first + count) of two views whose shapes share no grid. */
typedef struct direct_walk {
    strided_view to, from;
    uint64_t first, count;
} direct_walk;

typedef struct direct_move {
    strided_move move;
    const direct_walk *walk; /* replaces the move; otherwise NULL */
    /* For whole moves whose elements are cast: run_bytes and the walk's refer to `to`. */
    strided_format to_format, from_format;
    /* For quantizing moves, where an element of the move is a block, or its scale: the stride of a
     * block's values. */
    int64_t to_step, from_step;
} direct_move;

/* A list that two ranks build identically from the two views of each task. A rank takes one chunk,
 * of some hundred kilobytes, at a time. */
typedef struct direct_moves {
    ARRAY(direct_move) list;
    ARRAY(size_t) chunk_ends; /* into the list, ascending */
    arena loops;
    uint64_t bytes, chunk_bytes; /* of all; of those behind the last end */
} direct_moves;

/* Add a task; its loops are planned here, once. */
banyan_status direct_moves_add(direct_moves *moves, const strided_view *to,
                               const strided_view *from);
/* Add a task as one move without chunks, for a device, which cuts by itself and can cast. */
banyan_status direct_moves_add_whole(direct_moves *moves, const strided_view *to,
                                     const strided_view *from);
/* End the last chunk. */
banyan_status direct_moves_finish(direct_moves *moves);

void direct_moves_run_chunk(const direct_moves *moves, size_t chunk, bool streaming);

void direct_moves_free(direct_moves *moves);

#endif
