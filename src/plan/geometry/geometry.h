/* The byte layout of chunks: maps a plan, which counts in chunks, to a message of any size.
 *
 * Input and output consist of blocks, each of B bytes and k chunks; B and k are equal for both.
 * All-gather's output, reduce-scatter's input, and both buffers of all-to-all have one block per
 * rank. In a custom collective each chunk is a block, or as many chunks as it declares. All others
 * have one block in total. The stride of a chunk is S = ⌈B ÷ (k × alignment)⌉ × alignment. Chunk i
 * of a block starts at min(i × S, B) and is clipped at the block's end. Scratch chunks are never
 * clipped. A transfer carries, of each chunk, as many bytes as its shortest operand has. A packet
 * destination is the exception, because a reader waits for all of it: zeros follow the data
 * (plan_geometry_pad). The format's own runtime refuses sizes that are not a multiple of chunks ×
 * alignment; for sizes that are, both layouts are identical.
 *
 * docs/plans.md explains it with an example. */
#ifndef PLAN_GEOMETRY_GEOMETRY_H
#define PLAN_GEOMETRY_GEOMETRY_H

#include "plan/plan.h"

/* Scratch of plans that reuse resources and declare no size. */
#define PLAN_REUSED_SCRATCH_BYTES (UINT64_C(64) << 20)

typedef struct plan_geometry {
    uint64_t message_bytes; /* a rank's input, for the rank with most chunks */
    uint64_t chunk_bytes;   /* S */
    struct {
        uint64_t bytes;       /* the whole buffer, for the rank with most chunks */
        uint64_t block_bytes; /* B, for input and output */
        uint64_t block_chunks;
    } buffers[PLAN_BUFFERS];
    /* Data bytes between the starts of two scratch chunks. Equal to S; more when the scratch was
     * allocated for longer messages; less when it is reused, and then offsets wrap around. Packets
     * take twice as many bytes. */
    uint64_t scratch_stride;
    /* In plans with packets, other data in scratch starts after this many chunks: twice the chunks
     * of the rank that has most, for the packets. 0 without packets. */
    uint64_t scratch_data_chunks;
    /* one half, packets' flags included; all of it without double scratch */
    uint64_t scratch_half_bytes;
} plan_geometry;

/* Get the number of blocks of a message, and the chunks of each; 0 blocks: the plan has no buffers.
 */
void plan_message_divide(const banyan_plan *plan, uint64_t *blocks, uint64_t *block_chunks);

/* Lay out a plan for a message. INVALID: the message is not a multiple of `elem_bytes`, blocks
 * would be unequal, a size overflows, or reused scratch is too small for an operation outside a
 * loop or for a loop's unit. */
banyan_status plan_geometry_make(const banyan_plan *plan, uint64_t message_bytes, size_t elem_bytes,
                                 plan_geometry *geometry);

/* Lay out a plan for a message of at least `message_bytes` that divides evenly. Its buffers,
 * scratch and scratch stride are sufficient for every message up to `message_bytes`. */
banyan_status plan_geometry_largest(const banyan_plan *plan, uint64_t message_bytes,
                                    plan_geometry *geometry);

/* Return the size of the rank's own buffer; scratch has one size on all ranks. */
uint64_t plan_geometry_bytes(const plan_geometry *geometry, const banyan_plan *plan, int rank,
                             plan_buffer buffer);

/* Return the iterations of a pipeline, ⌈loop chunks × S ÷ unit⌉; 1 for other operations. */
uint64_t plan_geometry_iterations(const plan_geometry *geometry, const plan_op *pipeline);

/* Return the number of steps that a run makes in loops. An iteration takes one step for each of its
 * operations, and one for each of their operands, channels and semaphores. UINT64_MAX when there
 * are more. */
uint64_t plan_geometry_loop_steps(const plan_geometry *geometry, const banyan_plan *plan);

/* Equally many bytes of every operand of an operation. */
typedef struct plan_piece {
    uint64_t bytes;
    uint64_t offsets[]; /* sources, then destinations; in data bytes: packets are at twice that */
} plan_piece;

/* Called for each piece of an operation, in ascending order. BANYAN_OK continues. */
typedef banyan_status (*plan_piece_visit)(void *context, const plan_piece *piece);

/* Cut an operation of this rank's block into pieces. The block processes its share of a
 * thread-block group, in multiples of the alignment; the first blocks take the
 * remainder. In a loop it processes the bytes [iteration × unit, …) of its share (`loop` NULL:
 * outside any loop). Shares and units are computed from the chunks' whole strides, before clipping,
 * so they are equal in all operations with equally many chunks. Pieces that are adjacent in all
 * operands are joined. Pass an operation on pairs one pair at a time: its pairs may differ in
 * length. */
banyan_status plan_geometry_cut(const plan_geometry *geometry, const banyan_plan *plan, int rank,
                                const plan_thread_block *block, const plan_op *op,
                                const plan_op *loop, uint64_t iteration, plan_piece_visit visit,
                                void *context);

/* Visit the bytes that plan_geometry_cut omits because some operand lacks them, for an operation
 * with packets. The caller waits for the packet sources there too, and then writes packets of zeros
 * to the packet destinations. So whole chunks of packets are sent and waited for at every message
 * size, and the dependencies do not depend on the size. Only the packets' offsets are meaningful,
 * and the first may be in a packet that has data. */
banyan_status plan_geometry_pad(const plan_geometry *geometry, const banyan_plan *plan, int rank,
                                const plan_thread_block *block, const plan_op *op,
                                const plan_op *loop, uint64_t iteration, plan_piece_visit visit,
                                void *context);

/* The share of thread block `index` of `size` in `total` bytes, a multiple of the alignment; size
 * 0: all of it. */
typedef struct plan_share {
    uint64_t begin, end;
} plan_share;
plan_share plan_share_of(uint64_t total, uint64_t alignment, uint32_t index, uint32_t size);

#endif
