/* Rules of MSCCL++'s executor, which reads the same files and does not do quite the same.
 *
 * docs/mscclpp.md has every rule with the place in MSCCL++'s source that it follows from. */
#ifndef PLAN_EXECUTOR_MSCCLPP_H
#define PLAN_EXECUTOR_MSCCLPP_H

#include "plan/plan.h"

/* Lengths of its fixed arrays. */
#define MSCCLPP_BLOCK_OPS 64      /* operations of a thread block; a loop and its body count all */
#define MSCCLPP_BLOCK_CHANNELS 16 /* of each type, and remote buffers of each type */
#define MSCCLPP_OP_CHANNELS 8
#define MSCCLPP_OP_OPERANDS 10 /* sources, and destinations */
#define MSCCLPP_OP_SEMAPHORES 16
#define MSCCLPP_BARRIERS 16
#define MSCCLPP_THREADS 1024
/* Allocations are multiples of this (CUDA's allocators, PyTorch, CuPy). */
#define MSCCLPP_ALLOCATION_BYTES 512
/* A thread moves this many bytes at once. */
#define MSCCLPP_VECTOR_BYTES 16

/* A violation of a rule. `rank` is -1 for the whole plan, `block` and `op` are -1 for a whole rank,
 * `loop_op` is -1 outside loops. */
typedef struct mscclpp_fault {
    int rank, block, op, loop_op;
    const char *message; /* "has 17 memory channels: …": continues the name of the place */
} mscclpp_fault;

typedef banyan_status (*mscclpp_report)(void *context, const mscclpp_fault *fault);

/* Report every violation that does not depend on the message. A status that `report` returns ends
 * the review. */
banyan_status mscclpp_review(const banyan_plan *plan, mscclpp_report report, void *context);

/* Return the longest message that its 32-bit offsets and 16-bit counts of iterations hold, in the
 * measure of the plan's max_message_bytes. */
uint64_t mscclpp_longest_message(const banyan_plan *plan);

/* The chunks of scratch that a plan uses, over all ranks. Packets of chunk i lie where the executor
 * has other data of chunks 2i and 2i + 1. */
typedef struct mscclpp_scratch {
    bool packets, data;
    uint64_t packets_end; /* behind the last chunk of packets */
    uint64_t data_begin;  /* first chunk of other data */
} mscclpp_scratch;
mscclpp_scratch mscclpp_scratch_of(const banyan_plan *plan);

/* True if the executor looks for the i-th operand in the first half of double scratch in every run.
 */
bool mscclpp_is_in_first_half(const plan_cursor *at, uint32_t i);

/* True if the second half of double scratch begins at a multiple of MSCCLPP_VECTOR_BYTES. */
bool mscclpp_halves_align(const banyan_plan *plan);

/* Where input and output may begin in their allocations. The executor registers whole allocations,
 * and adds the buffer's offset to some of the places in them. */
typedef enum mscclpp_placement {
    MSCCLPP_ANYWHERE,
    MSCCLPP_EQUAL_OFFSETS, /* at the same offset on every rank */
    MSCCLPP_AT_BEGINNING
} mscclpp_placement;
mscclpp_placement mscclpp_placement_of(const banyan_plan *plan);

/* Return the number of flushes, which do nothing there; 0 for a plan that is adapted. */
uint64_t mscclpp_lost_flushes(const banyan_plan *plan);

/* Threads that have posted to each of a block's port channels since the threads last synchronized.
 * The i-th thread posts for the i-th channel of an operation. */
typedef struct mscclpp_posts {
    int *thread; /* one per channel: NOBODY, SEVERAL, or its number */
    uint32_t count;
} mscclpp_posts;

/* NO_MEMORY. */
banyan_status mscclpp_posts_make(const plan_thread_block *block, mscclpp_posts *posts);
void mscclpp_posts_free(mscclpp_posts *posts);
/* Return the index in op->channels of a channel that another thread has posted to, while this
 * operation has to come after that post; op->channel_count if there is none. */
uint32_t mscclpp_posts_conflict(const mscclpp_posts *posts, const plan_op *op);
/* Record that the operation is executed. */
void mscclpp_posts_note(mscclpp_posts *posts, const plan_op *op);

/* A list of operations under construction. */
typedef ARRAY(plan_op) mscclpp_ops;

/* Replace a list of the plan, in its arena, by the one that was made, and empty that. NO_MEMORY. */
banyan_status mscclpp_ops_store(banyan_plan *plan, mscclpp_ops *made, plan_op **ops,
                                uint32_t *count);

/* channels.c: true if no other thread block of the rank lists the channel. */
bool mscclpp_owns_channel(const plan_rank *rank, const plan_thread_block *own,
                          plan_channel_type type, uint32_t channel);
/* Return the number of a rank's channels to a peer. */
uint32_t mscclpp_count_channels(const plan_rank *rank, plan_channel_type type, int peer);
/* Add channels until two ranks have a pair that no operation uses, and get its numbers. False when
 * out of memory. */
bool mscclpp_add_pair(banyan_plan *plan, plan_channel_type type, int a, int b, uint32_t *of_a,
                      uint32_t *of_b);

/* Passes of banyan_plan_adapt, which change the plan. NO_MEMORY.
 *
 * join.c: make one operation of neighbours on consecutive chunks. */
banyan_status mscclpp_join(banyan_plan *plan);
/* split.c: divide operations that have too many channels or operands. Add nops between posts of
 * several threads. */
banyan_status mscclpp_split(banyan_plan *plan);
/* continue.c: continue long lists of operations in further thread blocks, where all ranks have the
 * same list. */
banyan_status mscclpp_continue(banyan_plan *plan);
/* gate.c: let every run begin with a handshake of the ranks that use the same scratch, so that one
 * half suffices. */
banyan_status mscclpp_gate(banyan_plan *plan);

#endif
