/* Where chunks lie in bytes: how a plan that counts in chunks is laid over a message of any size.
 *
 * Input and output are made of blocks of equally many bytes B and chunks k: all-gather's output,
 * reduce-scatter's input and both of all-to-all have a block a rank; a custom collective's
 * every chunk is one, or as many as it says; else there is one block in all. B and k are the same
 * for both. The stride of a chunk is S = ⌈B ÷ (k × alignment)⌉ × alignment; chunk i of a block
 * starts at min(i × S, B) and is clipped at the block's end. Scratch chunks are never clipped. A
 * transfer carries what the shortest of its operands has of each chunk, but to packets, for which
 * others wait, goes all of it: behind the data zeros (plan_geometry_pad). The format's own runtime
 * refuses sizes that do not divide by chunks × alignment; for those that do, this is the same.
 *
 * docs/plans.md explains it with an example. */
#ifndef PLAN_GEOMETRY_GEOMETRY_H
#define PLAN_GEOMETRY_GEOMETRY_H

#include "plan/plan.h"

/* Scratch of plans that reuse resources and do not say otherwise. */
#define PLAN_REUSED_SCRATCH_BYTES (UINT64_C(64) << 20)

typedef struct plan_geometry {
    uint64_t message_bytes; /* a rank's input, of the rank with most chunks */
    uint64_t chunk_bytes;   /* S */
    struct {
        uint64_t bytes;       /* of the whole buffer, of the rank with most chunks */
        uint64_t block_bytes; /* B, of input and output */
        uint64_t block_chunks;
    } buffers[PLAN_BUFFERS];
    /* Data bytes between the starts of two scratch chunks. S, or more when the scratch was taken
     * for longer messages, or less when it is reused: then offsets wrap around. Packets take twice
     * that. */
    uint64_t scratch_stride;
    /* Where plans with packets keep data that is in scratch too: behind so many chunks. Twice the
     * chunks of the rank that has most, for the packets; 0 without packets. */
    uint64_t scratch_data_chunks;
    uint64_t scratch_half_bytes; /* of one half, packets' flags counted in; all of it without double
                                    scratch */
} plan_geometry;

/* How many blocks a message is, and of how many chunks each; 0 blocks: there are no buffers. */
void plan_message_divide(const banyan_plan *plan, uint64_t *blocks, uint64_t *block_chunks);

/* INVALID: the message is not a multiple of `elem_bytes`, blocks would be unequal, a size
 * overflows, or scratch that is reused is too small for an operation outside a loop or for a loop's
 * unit. */
banyan_status plan_geometry_make(const banyan_plan *plan, uint64_t message_bytes, size_t elem_bytes,
                                 plan_geometry *geometry);

/* The geometry of a message of at least `message_bytes` that divides evenly: its buffers, scratch
 * and stride of scratch hold every message up to `message_bytes`. */
banyan_status plan_geometry_largest(const banyan_plan *plan, uint64_t message_bytes,
                                    plan_geometry *geometry);

/* Bytes of the rank's own buffer; scratch is as long on every rank. */
uint64_t plan_geometry_bytes(const plan_geometry *geometry, const banyan_plan *plan, int rank,
                             plan_buffer buffer);

/* Iterations of a pipeline: ⌈loop chunks × S ÷ unit⌉; 1 for other operations. */
uint64_t plan_geometry_iterations(const plan_geometry *geometry, const plan_op *pipeline);

/* Steps that a run makes in loops: an iteration takes one for each operation in it, and one for
 * each of their operands, channels and semaphores. UINT64_MAX when there are more. */
uint64_t plan_geometry_loop_steps(const plan_geometry *geometry, const banyan_plan *plan);

/* Equally long bytes of all operands of an operation. */
typedef struct plan_piece {
    uint64_t bytes;
    uint64_t offsets[]; /* sources, then destinations; in data bytes: packets lie at twice that */
} plan_piece;

/* Called for each piece of an operation, in ascending order. BANYAN_OK goes on. */
typedef banyan_status (*plan_piece_visit)(void *context, const plan_piece *piece);

/* Cut an operation of this rank's block into pieces: its share in a thread-block group (in
 * multiples of the alignment, the remainder over the first ones), and in a loop the bytes
 * [iteration × unit, …) of it (`loop` NULL: outside of any). Shares and units are of the chunks'
 * whole strides, before anything is clipped, so that they are the same bytes in all operations of
 * as many chunks. Pieces that touch in all operands are joined. An operation on pairs is given one
 * pair at a time: its pairs may differ in length. */
banyan_status plan_geometry_cut(const plan_geometry *geometry, const banyan_plan *plan, int rank,
                                const plan_thread_block *block, const plan_op *op,
                                const plan_op *loop, uint64_t iteration, plan_piece_visit visit,
                                void *context);

/* The bytes that plan_geometry_cut leaves out because some operand has no such bytes, of an
 * operation with packets: the sources that are packets are to be waited for there as well, and then
 * the destinations that are packets given packets of zeros. So whole chunks of packets come and are
 * waited for whatever the size of the message, and who waits for whom does not depend on it. Only
 * the packets' offsets mean something, and the first may lie in a packet that has data. */
banyan_status plan_geometry_pad(const plan_geometry *geometry, const banyan_plan *plan, int rank,
                                const plan_thread_block *block, const plan_op *op,
                                const plan_op *loop, uint64_t iteration, plan_piece_visit visit,
                                void *context);

/* The share of `index` in `total` bytes, a multiple of the alignment, among `size` thread blocks;
 * size 0: all of it. */
typedef struct plan_share {
    uint64_t begin, end;
} plan_share;
plan_share plan_share_of(uint64_t total, uint64_t alignment, uint32_t index, uint32_t size);

#endif
