/* What a rank moves in a run, as the kernel reads it: plain arrays in memory of the device. */
#ifndef CUDA_COPY_WORK_H
#define CUDA_COPY_WORK_H

#include "cuda/runtime/waits.h"

#define COPY_WARP 32
#define COPY_THREADS_MAX 256 /* in a thread block: whole warps */

/* A tile is what a warp moves at a time: so many units at most, each one load and one store of 1 to
 * 16 bytes. */
#define COPY_TILE_UNITS 512
#define COPY_TILE_BLOCKS 256 /* of values that are quantized */

/* One dimension of a box, in units. */
typedef struct copy_dim {
    uint32_t extent;
    uint32_t inverse; /* of extents up to COPY_TILE_UNITS: copy_divide */
    int64_t to, from; /* strides in bytes */
} copy_dim;

/* x / extent = x * inverse >> COPY_INVERSE_SHIFT for all x < 2 * COPY_TILE_UNITS. */
#define COPY_INVERSE_SHIFT 20

/* A box of units, slowest dimension first, cut into tiles: the inner dimensions are whole in each
 * tile, the dimension before them is cut into `chunks` of `chunk`, and those before that one are
 * walked tile by tile. */
typedef struct copy_move {
    char *to;
    const char *from;
    uint64_t tiles;
    uint32_t first_dim;
    uint16_t outer_count, inner_count;
    uint32_t chunk, chunks;
    uint32_t inner_units;
    uint16_t width;  /* of a unit: 1, 2, 4, 8 or 16 bytes; of a cast: 1 or 4 elements */
    uint8_t is_walk; /* then first_dim is the number of a copy_walk, and a chunk is a tile */
    uint8_t cast;    /* enum copy_cast, or what copy_quantize makes */
    int64_t to_step, from_step; /* of a block's values, where they are quantized */
} copy_move;

/* What becomes of elements. */
typedef enum copy_cast {
    COPY_AS_IT_IS,
    COPY_F32_TO_F16,
    COPY_F32_TO_BF16,
    COPY_F16_TO_F32,
    COPY_F16_TO_BF16,
    COPY_BF16_TO_F32,
    COPY_BF16_TO_F16,
    COPY_QUANTIZE = 0x80 /* and the bits below */
} copy_cast;

/* Of blocks: from f32, f16 or bf16 (as COPY_FROM_…); to scales, not to elements; by which rule; in
 * such places that several threads can share a block: values in 16 bytes, elements in 4 or 8. */
#define COPY_BLOCK 32
#define COPY_FROM_F32 0x01u
#define COPY_FROM_F16 0x02u
#define COPY_TO_SCALES 0x04u
#define COPY_ROUND_UP 0x08u
#define COPY_SHARED 0x10u

#define COPY_WALK_DIMS 8

/* One side of a walk: loops from slowest to fastest. */
typedef struct copy_walk_side {
    char *data;
    uint32_t count, unused;
    uint64_t extent[COPY_WALK_DIMS];
    int64_t stride[COPY_WALK_DIMS];
} copy_walk_side;

/* Two shapes without a common grid: each element is found on both sides. */
typedef struct copy_walk {
    copy_walk_side to, from;
    uint64_t elems;
    uint32_t elem_units, unused;
} copy_walk;

/* A warp's part of a lane. */
typedef struct copy_span {
    uint64_t tile;  /* of the first move */
    uint64_t tiles; /* in all */
    uint32_t move;
    uint32_t unused;
} copy_span;

/* gpu_copy_lane of gpu_copy.h; `runs` counts those that ended, here. */
typedef struct copy_lane {
    uint64_t *my_entered, *their_entered, *my_finished, *their_finished, *runs;
    int32_t peer;
    uint32_t receives;
    uint32_t by_engine; /* copy engines write to the partner */
    uint32_t unused;
} copy_lane;

#define COPY_RUNS_MAX 64

/* A GPU copy's, on the device; zero at first. */
typedef struct copy_shared {
    uint32_t failed, unused;
    uint64_t blocks_done;
    uint64_t runs[COPY_RUNS_MAX];
} copy_shared;

/* device_verdict of copy/service/device_report.h. */
#define COPY_LATE 1
#define COPY_STOPPED 2
#define COPY_SPOILT 3

/* device_report, in memory of the host. */
typedef struct copy_report {
    uint32_t verdict; /* written last */
    int32_t peer;
    uint64_t waited_ns;
    uint32_t for_data;
    uint32_t stop; /* the host's word to whoever waits */
    device_waits waits;
} copy_report;

/* What a launch does. One does all of it, or, where copy engines take part, one before them, one
 * beside them and one behind them. */
#define COPY_ENTER 1u
#define COPY_MEET 2u /* wait for the partners that copy engines write to */
#define COPY_MOVE 4u
#define COPY_FINISH 8u

typedef struct copy_args {
    const copy_lane *lanes;
    const copy_move *moves;
    const copy_dim *dims;
    const copy_walk *walks;
    const copy_span *spans; /* by lane, then warp */
    copy_shared *shared;
    copy_report *report;
    uint64_t timeout_ns;
    uint32_t lane_count;
    uint32_t phases;
} copy_args;

#endif
