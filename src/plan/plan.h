/* The one representation that compiler, reader, writer, checker, simulator and executors share. */
#ifndef PLAN_PLAN_H
#define PLAN_PLAN_H

#include <banyan/plan.h>

#include "core/containers/arena.h"
#include "core/containers/array.h"

typedef enum plan_buffer { PLAN_INPUT, PLAN_OUTPUT, PLAN_SCRATCH, PLAN_BUFFERS } plan_buffer;

typedef enum plan_channel_type {
    PLAN_NO_CHANNEL,
    PLAN_MEMORY,
    PLAN_PORT,
    PLAN_SWITCH,
    PLAN_CHANNEL_TYPES
} plan_channel_type;

typedef enum plan_op_kind {
    PLAN_NOP, /* all threads of the block have finished what came before */
    PLAN_COPY,
    PLAN_COPY_PACKET,   /* data to packets */
    PLAN_UNPACK_PACKET, /* packets to data */
    PLAN_REDUCE,
    PLAN_REDUCE_PACKET,      /* first source data, the others packets; to data */
    PLAN_REDUCE_COPY_PACKET, /* the same, and to local packets */
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
    PLAN_REDUCE_SEND_PACKET, /* the packet forms of it */
    PLAN_REDUCE_COPY_SEND_PACKET,
    PLAN_READ_REDUCE,      /* a local chunk with peers' */
    PLAN_READ_REDUCE_SEND, /* and to peers' as well */
    PLAN_GROUP_STORE,      /* to the same region of all ranks of a switch channel */
    PLAN_GROUP_STORE_PACKET,
    PLAN_GROUP_LOAD_REDUCE, /* the same region of all ranks, reduced */
    PLAN_GROUP_LOAD_REDUCE_STORE,
    PLAN_PIPELINE, /* operations run iteration by iteration over units of bytes */
    PLAN_OP_KINDS
} plan_op_kind;

/* Where synchronisation inside the thread block is wanted around an operation: bits, used by the
 * compiler before its synchronisation pass turns them into nops. */
enum { PLAN_SYNC_BEFORE = 1, PLAN_SYNC_AFTER = 2 };

typedef enum plan_place { PLAN_LOCAL, PLAN_REMOTE, PLAN_GROUP } plan_place;

/* Consecutive chunks that an operation reads or writes. */
typedef struct plan_operand {
    plan_place place;
    plan_buffer buffer; /* LOCAL; the others have theirs from what `reference` names */
    /* REMOTE: which of the thread block's remote buffers of the operation's channel type.
     * GROUP: which of the thread block's switch channels. */
    uint32_t reference;
    uint64_t index, size; /* chunks */
} plan_operand;

typedef struct plan_op plan_op;

/* Lists live in the plan's arena. What a kind does not use is zero. */
struct plan_op {
    plan_op_kind kind;
    plan_channel_type channel_type;
    banyan_reduce_op reduce_op;
    unsigned sync; /* PLAN_SYNC_…; 0 in a finished plan */
    /* Local operands first, as the format has them. For kinds that end in …_PACKET with several
     * destinations: data, then local packets, then peers' packets. */
    plan_operand *sources, *destinations;
    uint32_t source_count, destination_count;
    uint32_t
        *channels; /* numbers of the thread block's channels of the type, ascending for signals */
    uint32_t channel_count;
    uint32_t *semaphores; /* numbers of the rank's semaphores */
    uint32_t semaphore_count;
    uint32_t barrier;                 /* the rank's number of it */
    uint32_t barrier_members;         /* thread blocks that meet there */
    uint32_t group_index, group_size; /* this block's share of the operation; size 0: all of it */
    uint64_t unit_bytes, loop_chunks; /* PIPELINE */
    plan_op *ops;
    uint32_t op_count;
    /* The plan's number of the source line that asked for it, from 1. 0: the compiler added it, or
     * the plan has no lines. */
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
    unsigned access; /* a bit a plan_channel_type */
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
    int *peers[PLAN_CHANNEL_TYPES]; /* MEMORY and PORT: the rank that each channel leads to */
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

/* What an output chunk must hold: the contributions, reduced; none: nothing is said of it. */
typedef struct plan_expected {
    const plan_contribution *contributions;
    size_t count;
} plan_expected;

typedef struct plan_tag {
    const char *key, *value;
} plan_tag;

/* Where a program calls the builder. */
typedef struct plan_line {
    const char *file;
    int line;
} plan_line;

struct banyan_plan {
    arena memory; /* of everything below */
    const char *name;
    const char *collective_name;
    banyan_collective_kind collective;
    int root, shift;
    banyan_protocol protocol;
    bool in_place, reuse_resources, double_scratch;
    int threads_per_block;
    uint64_t buffer_alignment, min_message_bytes, max_message_bytes;
    uint64_t
        reused_scratch_bytes; /* with reuse_resources: a rank's scratch, whatever the message */
    /* A custom collective's: chunks that make a block of its input and output. 1 for all others. */
    uint64_t block_chunks;
    int rank_count;
    plan_rank *ranks;
    /* A custom collective's: expected[rank][output chunk], as many as the rank has; NULL when the
     * author gave none, or none of a rank. */
    plan_expected **expected;
    banyan_reduce_op expected_op;
    plan_tag *tags;
    size_t tag_count;
    plan_line *lines; /* of the program; none in a plan from elsewhere */
    uint32_t line_count;
};

/* An empty plan of so many ranks with the format's defaults; lists are then taken from its arena.
 * NULL, with the error set, when memory ran out. */
banyan_plan *plan_create(int ranks);
/* A copy of its own that may be changed: what a pass begins with. */
banyan_status plan_clone(const banyan_plan *plan, banyan_plan **clone);
/* The same without the operations: blocks' lists are still those of `plan`. */
banyan_status plan_clone_frame(const banyan_plan *plan, banyan_plan **clone);
/* A copy of a list and all that its operations hold, in the plan's arena; an empty one may be NULL.
 */
banyan_status plan_copy_ops(banyan_plan *plan, const plan_op *ops, uint32_t count, plan_op **copy);

/* From the plan's arena, zeroed: `count` things of `bytes` each. NULL, with the error set. */
void *plan_take(banyan_plan *plan, size_t count, size_t bytes);
const char *plan_take_text(banyan_plan *plan, const char *text);

/* The source line of an operation, or NULL. */
static inline const plan_line *plan_line_of(const banyan_plan *plan, const plan_op *op)
{
    return op->line > 0 ? &plan->lines[op->line - 1] : NULL;
}

/* "put", "respkt"; "i", "o", "s"; "memory". As the format has them. */
const char *plan_op_name(plan_op_kind kind);
bool plan_op_parse(const char *name, plan_op_kind *kind);
const char *plan_buffer_name(plan_buffer buffer);
const char *plan_channel_name(plan_channel_type type);

/* What kinds have in common; op.h has the whole table. */
bool plan_op_reads_packets(plan_op_kind kind);  /* any source is packets */
bool plan_op_writes_packets(plan_op_kind kind); /* any destination is packets */
/* Is the i-th source, or destination, packets? */
bool plan_source_is_packets(const plan_op *op, uint32_t i);
bool plan_destination_is_packets(const plan_op *op, uint32_t i);
bool plan_op_reduces(plan_op_kind kind);
bool plan_op_waits(plan_op_kind kind); /* wait, relaxed wait, acquire, barrier, flush */
/* Is the i-th source moved to the i-th destination, each for itself: get, put, put with signal (and
 * flush), put packet? Other kinds use all their operands together. */
bool plan_op_is_pairs(plan_op_kind kind);
/* What an operation that moves data is done in: one part a pair of a source and a destination, of
 * which forwarding packets has one source for all; reductions are one part. 0 for those that move
 * none. */
uint32_t plan_op_part_count(const plan_op *op);
/* The i-th part as an operation; its operands stay the whole one's. */
plan_op plan_op_part(const plan_op *op, uint32_t i);

/* From the operation at hand, `*at`, to the next one; in a loop (NULL: in none) from its operation
 * `*inner`, and behind the last of them to the next iteration. */
void plan_go_on(const plan_op *loop, uint32_t *at, uint32_t *inner, uint64_t *iteration);

/* Whose buffer an operand of this rank's thread block is, and which. For GROUP the rank is the
 * first of the group. */
typedef struct plan_where {
    int rank;
    plan_buffer buffer;
} plan_where;
plan_where plan_operand_where(const banyan_plan *plan, int rank, const plan_thread_block *block,
                              const plan_op *op, const plan_operand *operand);
/* The ranks whose buffers those are: `*room`, or all of a group. How many. */
int plan_operand_ranks(const banyan_plan *plan, int rank, const plan_thread_block *block,
                       const plan_op *op, const plan_operand *operand, const int **ranks,
                       int *room);
/* The rank's channel behind a thread block's channel number. */
static inline uint32_t plan_channel_of(const plan_thread_block *block, const plan_op *op,
                                       uint32_t number)
{
    return block->channels[op->channel_type][number];
}
/* The channel of `peer` that the rank's channel pairs with: the k-th from a to b is the k-th from b
 * to a. False when the peer has no such channel. MEMORY and PORT. */
bool plan_channel_pair(const banyan_plan *plan, int rank, plan_channel_type type, uint32_t channel,
                       int *peer, uint32_t *peer_channel);

/* Is every index in range, does every channel end exist, do barrier members agree, does every
 * operation have the operands of its kind? FORMAT, with the path of keys, when not. What the reader
 * and the compiler end with. */
banyan_status plan_check_indices(const banyan_plan *plan, const char *name);

/* What output chunk `chunk` of `rank` must hold, for whole collectives and custom ones that say.
 * `room` has space for rank_count contributions. In an in-place plan too, chunks are those of the
 * output. False: nothing is said. */
bool plan_expected_of(const banyan_plan *plan, int rank, uint64_t chunk, plan_contribution *room,
                      plan_expected *expected, banyan_reduce_op *op);

#endif
