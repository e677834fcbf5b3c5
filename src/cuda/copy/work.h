/* The moves of a rank in a run, in the form for the kernel: plain arrays in device memory. */
#ifndef CUDA_COPY_WORK_H
#define CUDA_COPY_WORK_H

#include <stdbool.h>

#include "cuda/runtime/report.h"

#define COPY_WARP 32
#define COPY_THREADS_MAX 256 /* per thread block; whole warps */

/* A warp moves a tile at a time: at most this many units, each with one load and one store of 1 to
 * 16 bytes. */
#define COPY_TILE_UNITS 512
#define COPY_TILE_BLOCKS 256 /* blocks of quantized values */

/* One dimension of a box, in units. */
typedef struct copy_dim {
    uint32_t extent;
    uint32_t inverse;        /* for extents up to COPY_TILE_UNITS: copy_divide */
    int64_t to, from, scale; /* strides in bytes */
} copy_dim;

/* x / extent = x * inverse >> COPY_INVERSE_SHIFT for all x < 2 * COPY_TILE_UNITS. */
#define COPY_INVERSE_SHIFT 20

/* A box of units, slowest dimension first, divided into tiles. The inner dimensions are whole in
 * each tile; the dimension before them is divided into `chunks` of `chunk`; the dimensions before
 * that are walked tile by tile. */
typedef struct copy_move {
    char *to;
    const char *from;
    uint64_t tiles;
    uint32_t first_dim;
    uint16_t outer_count, inner_count;
    uint32_t chunk, chunks;
    uint32_t inner_units;
    uint16_t width;  /* of a unit: 1, 2, 4, 8 or 16 bytes; for a cast: 1 or 4 elements */
    uint8_t is_walk; /* if set, first_dim is the number of a copy_walk, and a chunk is a tile */
    uint8_t cast;    /* enum copy_cast, or a result of copy_quantize */
    int64_t to_step, from_step; /* distance of a block's values, if they are quantized */
    char *scales;               /* for COPY_TO_BOTH */
    /* If not 0: the fastest dimension is a run of so many bytes, at any address. Its units are the
     * aligned words of the destination that have bytes of it. */
    uint64_t run_bytes;
} copy_move;

/* The conversion of elements. */
typedef enum copy_cast {
    COPY_AS_IT_IS,
    COPY_F32_TO_F16,
    COPY_F32_TO_BF16,
    COPY_F16_TO_F32,
    COPY_F16_TO_BF16,
    COPY_BF16_TO_F32,
    COPY_BF16_TO_F16,
    COPY_QUANTIZE = 0x80 /* combined with the bits below */
} copy_cast;

/* For blocks: the source type f32, f16 or bf16 (as COPY_FROM_…); scales, elements or both; the
 * rounding rule; whether several threads can share a block, with values in 16 bytes and elements in
 * 4 or 8 (COPY_TO_BOTH only then). */
#define COPY_BLOCK 32
#define COPY_FROM_F32 0x01u
#define COPY_FROM_F16 0x02u
#define COPY_TO_SCALES 0x04u
#define COPY_ROUND_UP 0x08u
#define COPY_SHARED 0x10u
#define COPY_TO_BOTH 0x20u

#define COPY_WALK_DIMS 8

/* One side of a walk: loops from slowest to fastest. */
typedef struct copy_walk_side {
    char *data;
    uint32_t count, unused;
    uint64_t extent[COPY_WALK_DIMS];
    int64_t stride[COPY_WALK_DIMS];
} copy_walk_side;

/* Two shapes without a common grid: each element's position is computed on both sides. */
typedef struct copy_walk {
    copy_walk_side to, from;
    uint64_t elems;
    uint32_t elem_units, unused;
} copy_walk;

/* A warp's part of a lane. */
typedef struct copy_span {
    uint64_t tile;  /* in the first move */
    uint64_t tiles; /* in total */
    uint32_t move;
    uint32_t unused;
} copy_span;

/* gpu_copy_lane of gpu_copy.h; `runs` counts the ended runs on this rank. */
typedef struct copy_lane {
    uint64_t *my_entered, *their_entered, *my_finished, *their_finished, *runs;
    int32_t peer;
    uint32_t receives;
    uint32_t by_engine; /* copy engines write to the partner */
    uint32_t unused;
} copy_lane;

#define COPY_RUNS_MAX 64

/* A GPU copy's state on the device; initially zero. */
typedef struct copy_shared {
    uint32_t failed, unused;
    uint64_t blocks_done;
    uint64_t runs[COPY_RUNS_MAX];
} copy_shared;

/* The phases of a launch. One launch does all; with copy engines, one precedes them, one runs
 * beside them and one follows them. */
#define COPY_ENTER 1u
#define COPY_WAIT 2u /* wait for the partners that copy engines write to */
#define COPY_MOVE 4u
#define COPY_FINISH 8u

typedef struct copy_args {
    const copy_lane *lanes;
    const copy_move *moves;
    const copy_dim *dims;
    const copy_walk *walks;
    const copy_span *spans; /* indexed by lane, then warp */
    copy_shared *shared;
    report_words *reports;
    uint64_t timeout_ns;
    uint32_t lane_count;
    uint32_t phases;
} copy_args;

#ifdef __cplusplus
extern "C" {
#endif

/* For driver_kernel: one of two kernels; the second also converts elements, and moves runs. The
 * kernel takes copy_args, at most COPY_THREADS_MAX threads per block, and no shared memory. */
const void *copy_kernel_symbol(bool converts);

#ifdef __cplusplus
}
#endif

#endif
