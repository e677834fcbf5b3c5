/* Where chunks lie in bytes: how a plan that counts in chunks is laid over a message of any size.
 *
 * The stride of a chunk is S = ⌈block bytes ÷ (chunks of the block × alignment)⌉ × alignment, equal
 * in all buffers of all ranks. Input and output are made of blocks of equal bytes (all-gather's
 * output, reduce-scatter's input and both of all-to-all: one a rank; else one in all); chunk i of a
 * block starts at min(i × S, block bytes) and is clipped at the block's end. Scratch chunks lie S
 * apart and are never clipped. A transfer carries what the shortest of its operands has of each
 * chunk. (The format's own runtime refuses sizes that do not divide; for those that do, this is the
 * same.) */
#ifndef PLAN_GEOMETRY_H
#define PLAN_GEOMETRY_H

#include "plan/plan.h"

/* Scratch of plans that reuse resources and do not say otherwise. */
#define PLAN_REUSED_SCRATCH_BYTES (UINT64_C(64) << 20)

typedef struct plan_geometry {
    uint64_t message_bytes; /* a rank's input */
    uint64_t chunk_bytes;   /* S */
    struct {
        uint64_t bytes;       /* of the whole buffer, of the rank with most chunks */
        uint64_t block_bytes; /* input and output */
        uint64_t block_chunks;
    } buffers[PLAN_BUFFERS];
    /* Data bytes between the starts of two scratch chunks: S, or less when scratch is reused, and
     * then offsets inside a chunk wrap around in it. Packets take twice that. */
    uint64_t scratch_stride;
    uint64_t scratch_half_bytes; /* of one half, packets' flags counted in; all of it without double
                                    scratch */
} plan_geometry;

/* INVALID: the message is not a multiple of `elem_bytes`, blocks would be unequal, a size
 * overflows, or scratch that is reused is too small for an operation outside a loop or for a loop's
 * unit. */
banyan_status plan_geometry_make(const banyan_plan *plan, uint64_t message_bytes, size_t elem_bytes,
                                 plan_geometry *geometry);

/* Bytes of the rank's own buffer. */
uint64_t plan_geometry_bytes(const plan_geometry *geometry, const banyan_plan *plan, int rank,
                             plan_buffer buffer);

/* Iterations of a pipeline: ⌈loop chunks × S ÷ unit⌉; 1 for other operations. */
uint64_t plan_geometry_iterations(const plan_geometry *geometry, const plan_op *pipeline);

/* Equally long bytes of all operands of an operation. */
typedef struct plan_piece {
    uint64_t bytes;
    uint64_t offsets[]; /* sources, then destinations; in data bytes: packets lie at twice that */
} plan_piece;

/* Called for each piece of an operation, in ascending order. BANYAN_OK goes on. */
typedef banyan_status (*plan_piece_visit)(void *context, const plan_piece *piece);

/* Cut an operation of this rank's block into pieces: its share in a thread-block group (in
 * multiples of the alignment, the remainder over the first ones), and in a loop the bytes
 * [iteration × unit, …) of it (`loop` NULL: outside of any). Pieces that touch in all operands are
 * joined. */
banyan_status plan_geometry_cut(const plan_geometry *geometry, const banyan_plan *plan, int rank,
                                const plan_thread_block *block, const plan_op *op,
                                const plan_op *loop, uint64_t iteration, plan_piece_visit visit,
                                void *context);

#endif
