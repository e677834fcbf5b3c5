/* The one representation shared by the compiler, reader, writer, checker, simulator and executors.
 */
#ifndef PLAN_PLAN_H
#define PLAN_PLAN_H

#include <banyan/plan.h>

#include "core/containers.h"

typedef enum plan_buffer { PLAN_INPUT, PLAN_OUTPUT, PLAN_SCRATCH, PLAN_BUFFERS } plan_buffer;

typedef enum plan_channel_type {
    PLAN_NO_CHANNEL,
    PLAN_MEMORY,
    PLAN_PORT,
    PLAN_SWITCH,
    PLAN_CHANNEL_TYPES
} plan_channel_type;

typedef enum plan_op_kind {
    PLAN_NOP, /* barrier of the block's own threads */
    PLAN_COPY,
    PLAN_COPY_PACKET,   /* data to packets */
    PLAN_UNPACK_PACKET, /* packets to data */
    PLAN_REDUCE,
    PLAN_REDUCE_PACKET,      /* first source data, the others packets; to data */
    PLAN_REDUCE_COPY_PACKET, /* reduce, and copy to local packets */
    PLAN_SEM_ACQUIRE,
    PLAN_SEM_RELEASE,
    PLAN_SIGNAL,
    PLAN_WAIT,
    PLAN_RELAXED_SIGNAL,
    PLAN_RELAXED_WAIT,
    PLAN_BARRIER,
    PLAN_FLUSH,
    PLAN_GET,
    PLAN_PUT,
    PLAN_PUT_PACKET,      /* data to a peer's packets */
    PLAN_READ_PUT_PACKET, /* packets to a peer's packets */
    PLAN_PUT_WITH_SIGNAL,
    PLAN_PUT_WITH_SIGNAL_AND_FLUSH,
    PLAN_REDUCE_SEND,        /* reduce to a local chunk and to peers' */
    PLAN_REDUCE_SEND_PACKET, /* its packet forms */
    PLAN_REDUCE_COPY_SEND_PACKET,
    PLAN_READ_REDUCE,      /* a local chunk with peers' */
    PLAN_READ_REDUCE_SEND, /* and to peers' as well */
    PLAN_GROUP_STORE,      /* to the same region of all ranks of a switch channel */
    PLAN_GROUP_STORE_PACKET,
    PLAN_GROUP_LOAD_REDUCE, /* reduce one region of all ranks */
    PLAN_GROUP_LOAD_REDUCE_STORE,
    PLAN_PIPELINE, /* operations run iteration by iteration over units of bytes */
    PLAN_OP_KINDS
} plan_op_kind;

/* Synchronization that the compiler needs around an operation, inside the thread block: bits, which
 * its synchronization pass turns into nops. */
enum { PLAN_SYNC_BEFORE = 1, PLAN_SYNC_AFTER = 2 };

typedef enum plan_place { PLAN_LOCAL, PLAN_REMOTE, PLAN_GROUP } plan_place;

/* Consecutive chunks that an operation reads or writes. */
typedef struct plan_operand {
    plan_place place;
    plan_buffer buffer; /* of a LOCAL operand; others have that of `reference` */
    /* REMOTE: index among the thread block's remote buffers of the operation's channel type. GROUP:
     * index among the thread block's switch channels. */
    uint32_t reference;
    uint64_t index, size; /* chunks */
} plan_operand;

typedef struct plan_op plan_op;

/* Lists live in the plan's arena. Fields that a kind does not use are zero. */
struct plan_op {
    plan_op_kind kind;
    plan_channel_type channel_type;
    banyan_reduce_op reduce_op;
    unsigned sync; /* PLAN_SYNC_…; 0 in a finished plan */
    /* Local operands first, as in the format. Kinds that end in …_PACKET and have several
     * destinations: data, then local packets, then peers' packets. */
    plan_operand *sources, *destinations;
    uint32_t source_count, destination_count;
    uint32_t
        *channels; /* numbers of the thread block's channels of the type, ascending for signals */
    uint32_t channel_count;
    uint32_t *semaphores; /* numbers of the rank's semaphores */
    uint32_t semaphore_count;
    uint32_t barrier;                 /* its number at the rank */
    uint32_t barrier_members;         /* number of thread blocks in the barrier */
    uint32_t group_index, group_size; /* this block's share of the operation; size 0: all of it */
    uint64_t unit_bytes, loop_chunks; /* PIPELINE */
    plan_op *ops;
    uint32_t op_count;
    /* The plan's number of the source line of the operation, from 1. 0: the compiler added the
     * operation, or the plan has no lines. */
    uint32_t line;
};

/* A thread block's own numbering of the rank's channels and remote buffers. */
typedef struct plan_thread_block {
    uint32_t id;
    plan_op *ops;
    uint32_t op_count;
    uint32_t *channels[PLAN_CHANNEL_TYPES];
    uint32_t channel_count[PLAN_CHANNEL_TYPES];
    uint32_t *remote_buffers[PLAN_CHANNEL_TYPES];
    uint32_t remote_buffer_count[PLAN_CHANNEL_TYPES];
} plan_thread_block;

typedef struct plan_remote_buffer {
    int rank;
    plan_buffer buffer;
    unsigned access; /* one bit per plan_channel_type */
} plan_remote_buffer;

typedef struct plan_switch {
    plan_buffer buffer;
    int *ranks;
    int rank_count;
} plan_switch;

typedef struct plan_rank {
    uint64_t chunks[PLAN_BUFFERS];
    plan_thread_block *blocks;
    uint32_t block_count;
    int *peers[PLAN_CHANNEL_TYPES]; /* MEMORY and PORT: the peer of each channel */
    uint32_t channel_count[PLAN_CHANNEL_TYPES];
    plan_switch *switches; /* channel_count[PLAN_SWITCH] of them */
    plan_remote_buffer *remote_buffers;
    uint32_t remote_buffer_count;
    uint64_t *semaphores; /* initial values */
    uint32_t semaphore_count;
} plan_rank;

/* One rank's input chunk. */
typedef struct plan_contribution {
    int rank;
    uint64_t chunk;
} plan_contribution;

/* The expected contents of an output chunk: the reduced contributions. No contributions:
 * unspecified. */
typedef struct plan_expected {
    const plan_contribution *contributions;
    size_t count;
} plan_expected;

typedef struct plan_tag {
    const char *key, *value;
} plan_tag;

/* A place where a program calls the builder. */
typedef struct plan_line {
    const char *file;
    int line;
} plan_line;

struct banyan_plan {
    arena memory; /* holds everything below */
    const char *name;
    const char *collective_name;
    banyan_collective_kind collective;
    int root, shift;
    banyan_protocol protocol;
    bool in_place, reuse_resources, double_scratch;
    banyan_plan_executor
        executor; /* that its file is written for; the plan means the same for all */
    int threads_per_block;
    uint64_t buffer_alignment, min_message_bytes, max_message_bytes;
    uint64_t
        reused_scratch_bytes; /* with reuse_resources: a rank's scratch, for every message size */
    /* A custom collective: chunks per block of its input and output. 1 for all others. */
    uint64_t block_chunks;
    int rank_count;
    plan_rank *ranks;
    /* A custom collective: expected[rank][output chunk], as many as the rank has. NULL when the
     * author specified none, or none for a rank. */
    plan_expected **expected;
    banyan_reduce_op expected_op;
    plan_tag *tags;
    size_t tag_count;
    plan_line *lines; /* of the program; none in a plan from another source */
    uint32_t line_count;
};

/* Create an empty plan with this many ranks and the format's defaults; its arena holds all lists.
 * NULL, with the error set, when out of memory. */
banyan_plan *plan_create(int ranks);
/* Copy a plan, for a pass that changes it. */
banyan_status plan_clone(const banyan_plan *plan, banyan_plan **clone);
/* Copy a plan without its operations: the blocks' lists remain those of `plan`. */
banyan_status plan_clone_frame(const banyan_plan *plan, banyan_plan **clone);
/* Copy a list of operations and everything they refer to into the plan's arena; an empty list may
 * be NULL. */
banyan_status plan_copy_ops(banyan_plan *plan, const plan_op *ops, uint32_t count, plan_op **copy);

/* Allocate `count` zeroed elements of `bytes` each from the plan's arena. NULL, with the error set,
 * when out of memory. */
void *plan_take(banyan_plan *plan, size_t count, size_t bytes);
const char *plan_take_text(banyan_plan *plan, const char *text);

/* Return the source line of an operation, or NULL. */
static inline const plan_line *plan_line_of(const banyan_plan *plan, const plan_op *op)
{
    return op->line > 0 ? &plan->lines[op->line - 1] : NULL;
}

/* Return the format's name: "put", "respkt"; "i", "o", "s"; "memory". */
const char *plan_op_name(plan_op_kind kind);
bool plan_op_parse(const char *name, plan_op_kind *kind);
const char *plan_buffer_name(plan_buffer buffer);
const char *plan_channel_name(plan_channel_type type);

/* Properties of kinds; op.h has the whole table. */
bool plan_op_reads_packets(plan_op_kind kind);  /* any source is packets */
bool plan_op_writes_packets(plan_op_kind kind); /* any destination is packets */
/* True if the i-th source, or destination, is packets. */
bool plan_source_is_packets(const plan_op *op, uint32_t i);
bool plan_destination_is_packets(const plan_op *op, uint32_t i);
bool plan_op_reduces(plan_op_kind kind);
/* True for kinds that move the i-th source to the i-th destination, pair by pair: get, put, put
 * with signal (and flush), put packet. Other kinds use all their operands together. */
bool plan_op_is_pairs(plan_op_kind kind);
/* Return the number of parts of an operation that moves data. Operations on pairs have one part per
 * pair of source and destination; forwarding packets has one source for all pairs. A reduction is
 * one part. 0 for operations that move no data. */
uint32_t plan_op_part_count(const plan_op *op);
/* Return the i-th part as an operation; its operands remain those of the whole. */
plan_op plan_op_part(const plan_op *op, uint32_t i);

/* An operation in its place in the plan. */
typedef struct plan_cursor {
    const banyan_plan *plan;
    const plan_thread_block *block;
    const plan_op *op, *loop; /* loop NULL: in no loop */
    int rank;
    uint32_t number;    /* of the thread block, in its rank */
    uint32_t at, inner; /* of the operation, and in its loop */
} plan_cursor;
/* Advance to the next operation: of one rank after the other, of one thread block after the other;
 * a loop comes before the operations in it. Begins with a cursor that has nothing but its plan.
 * False after the last. */
bool plan_cursor_next(plan_cursor *at);

/* The i-th operand, sources first. */
static inline uint32_t plan_operand_count(const plan_op *op)
{
    return op->source_count + op->destination_count;
}
static inline const plan_operand *plan_operand_at(const plan_op *op, uint32_t i)
{
    return i < op->source_count ? &op->sources[i] : &op->destinations[i - op->source_count];
}
static inline bool plan_operand_is_packets(const plan_op *op, uint32_t i)
{
    return i < op->source_count ? plan_source_is_packets(op, i)
                                : plan_destination_is_packets(op, i - op->source_count);
}

/* The rank and the buffer of an operand of this rank's thread block. For GROUP the rank is the
 * first of the group. */
typedef struct plan_where {
    int rank;
    plan_buffer buffer;
} plan_where;
plan_where plan_operand_where(const banyan_plan *plan, int rank, const plan_thread_block *block,
                              const plan_op *op, const plan_operand *operand);
/* Get the ranks of an operand, in `*room` or as the group's list; return their number. */
int plan_operand_ranks(const banyan_plan *plan, int rank, const plan_thread_block *block,
                       const plan_op *op, const plan_operand *operand, const int **ranks,
                       int *room);
/* True if operands of one buffer have chunks in common. */
static inline bool plan_operands_overlap(const plan_operand *a, const plan_operand *b)
{
    return a->index < b->index + b->size && b->index < a->index + a->size;
}
/* True if the operation of this rank's thread block writes packets to the reader's scratch, at this
 * operand. */
bool plan_op_writes_to(const banyan_plan *plan, int rank, const plan_thread_block *block,
                       const plan_op *op, int reader, const plan_operand *wanted);
/* The switch channel of a GROUP operand. */
static inline const plan_switch *plan_operand_group(const banyan_plan *plan, int rank,
                                                    const plan_thread_block *block,
                                                    const plan_operand *operand)
{
    return &plan->ranks[rank].switches[block->channels[PLAN_SWITCH][operand->reference]];
}
/* Return the rank's channel for a thread block's channel number. */
static inline uint32_t plan_channel_of(const plan_thread_block *block, const plan_op *op,
                                       uint32_t number)
{
    return block->channels[op->channel_type][number];
}
/* Find the channel of `peer` that pairs with the rank's channel: the k-th from a to b pairs with
 * the k-th from b to a. False when the peer has no such channel. MEMORY and PORT. */
bool plan_channel_pair(const banyan_plan *plan, int rank, plan_channel_type type, uint32_t channel,
                       int *peer, uint32_t *peer_channel);

/* Check that every index is in range, every channel end exists, barrier members agree, and every
 * operation has the operands of its kind. FORMAT, with the path of keys, otherwise. The reader and
 * the compiler end with it. */
banyan_status plan_check_indices(const banyan_plan *plan, const char *name);

/* Get the expected contents of output chunk `chunk` of `rank`, for built-in collectives and for
 * custom ones that specify it. `room` has space for rank_count contributions. Chunks are those of
 * the output, in an in-place plan too. False: unspecified. */
bool plan_expected_of(const banyan_plan *plan, int rank, uint64_t chunk, plan_contribution *room,
                      plan_expected *expected, banyan_reduce_op *op);

#endif
