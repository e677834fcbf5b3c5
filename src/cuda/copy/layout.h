/* A rank's lanes as the arrays of work.h, and the moves that use copy engines instead. */
#ifndef CUDA_COPY_LAYOUT_H
#define CUDA_COPY_LAYOUT_H

#include "copy/direct/gpu_copy.h"
#include "cuda/copy/work.h"

/* A contiguous run for a copy engine. */
typedef struct copy_engine_move {
    char *to;
    const char *from;
    uint64_t bytes;
    size_t lane;
} copy_engine_move;

/* Zeroed, it is empty. */
typedef struct copy_layout {
    copy_move *moves;
    size_t move_count, move_room;
    copy_dim *dims;
    size_t dim_count, dim_room;
    copy_walk *walks;
    size_t walk_count, walk_room;
    copy_engine_move *engine_moves;
    size_t engine_count, engine_room;
    uint64_t engine_bytes;
    uint64_t tiles;
    bool converts; /* some moves convert elements, or are runs at any address */
    struct copy_lane_part {
        uint32_t first_move;
        uint64_t tiles;
    } * lanes;
    size_t lane_count;
} copy_layout;

/* Lay out the lanes. Contiguous runs of at least `engine_bytes` to other devices are listed for
 * copy engines (0: none). Local. NO_MEMORY. */
banyan_status copy_layout_make(const gpu_copy_lane *lanes, size_t count, uint64_t engine_bytes,
                               copy_layout *layout);
void copy_layout_free(copy_layout *layout);

/* Compute each warp's part of each lane: lane_count × warps spans. */
void copy_layout_spans(const copy_layout *layout, uint32_t warps, copy_span *spans);

/* A layout as one block of bytes, which is copied to the device unchanged: the bytes, and the
 * offset of each array in them. */
typedef struct copy_image {
    char *data;
    size_t bytes;
    size_t lanes, moves, dims, walks, spans;
} copy_image;

/* Write all arrays except the lanes, which are zero, with the shares of `warps` warps (0: none).
 * The caller frees `data`. False if out of memory; `bytes` is set in any case. */
bool copy_image_make(const copy_layout *layout, uint32_t warps, copy_image *made);

copy_lane *copy_image_lanes(const copy_image *image);

/* Let a kernel's arguments point to the arrays of a copy at `there`. */
void copy_image_point(const copy_image *image, const char *there, copy_args *args);

#endif
