/* The steps of a thread block: a plan's operations, specialized for one message size and element
 * type. */
#ifndef EXECUTE_SPECIALIZE_STEP_H
#define EXECUTE_SPECIALIZE_STEP_H

#include "channel/counter.h"
#include "channel/multi_copy.h"
#include "channel/port.h"
#include "channel/reduce.h"
#include "channel/remote_port.h"
#include "execute/specialize/step_kind.h"
#include "plan/geometry/geometry.h"
#include "plan/plan.h"

/* This rank's end of a memory or port channel. */
typedef struct channel_end {
    counter *incoming;   /* at this rank; the peer adds to it */
    counter *outgoing;   /* at the peer; NULL: it is on another node. On a device then a remote
                            address (engine.h) */
    wake_up *wake_up;    /* wakes the peer; NULL: it is on another node */
    port_queue *queue;   /* PORT, to a peer of this node */
    remote_port *remote; /* PORT, to a peer of another node */
    _Atomic uint64_t consumed; /* signals that waits on this rank have taken */
    atomic_flag posting;       /* lock: one thread posts at a time */
    int peer;
    uint32_t number; /* index among the rank's channels of the type */
} channel_end;

/* Post a request. One thread at a time. False: there is no room; try again later. */
static inline bool channel_end_post(channel_end *end, const port_request *request)
{
    return end->remote ? remote_port_post(end->remote, request) : port_post(end->queue, request);
}

/* Sources, then destinations; each member of a group is an operand. */
typedef struct step_operand {
    uint32_t base; /* rank × PLAN_BUFFERS + buffer */
    bool packets;
    bool past_cache; /* a destination that is used again only after it has left the caches */
} step_operand;

/* Positions of a step's operands, piece by piece: bytes, then one offset for each operand. Offsets
 * of packets count packet bytes, twice the data's. */
typedef ARRAY(uint64_t) piece_words;

/* Marks a piece's bytes as a pad. A pad is not part of the message, but its packets are waited for
 * and passed on all the same. A rank thus cannot run ahead of a peer that it would wait for in a
 * longer message. */
#define STEP_PAD (UINT64_C(1) << 63)

typedef struct step {
    step_kind kind;
    uint32_t number;      /* the operation's number in its thread block */
    const plan_op *op;    /* the operation, or the part of it that defines the pieces */
    const plan_op *whole; /* the operation as in the plan */
    const plan_op *loop;  /* the enclosing loop, or NULL */

    step_operand *operands;
    uint32_t source_count, destination_count;
    multi_copy_way way; /* COPY */
    bool streams;       /* some destinations bypass the caches */
    uint32_t target;    /* COMBINE: the operand that receives the result first; STEP_NO_TARGET: the
                           buffer */
    uint64_t block_bytes; /* COMBINE: bytes at a time */
    reduce_fn reduce;
    uint64_t first_word, piece_count; /* outside of loops: in the specialized plan's words */
    /* In a loop of `iterations`, the words of iteration i lie at [iteration_at[i], iteration_at[i
     * + 1]). NULL: there are too many iterations, and each one's pieces are computed when it
     * runs. */
    uint64_t *iteration_at;
    bool new_flags;      /* each iteration's packets have a flag of their own */
    wake_up **doorbells; /* of ranks that may sleep until the packets arrive */
    uint32_t doorbell_count;

    channel_end **ends;
    uint32_t end_count;
    uint32_t barrier;    /* BARRIER: its index among the rank's barriers */
    uint64_t iterations; /* LOOP */
    uint32_t first;      /* LOOP_END: the step to return to; LOOP: the step after its end */
} step;

static inline uint32_t step_base(int rank, plan_buffer buffer)
{
    return (uint32_t)rank * PLAN_BUFFERS + (uint32_t)buffer;
}

static inline uint32_t step_operand_count(const step *s)
{
    return s->source_count + s->destination_count;
}

/* Number of words of a piece. */
static inline uint32_t step_piece_words(const step *s)
{
    return 1 + step_operand_count(s);
}

#define STEP_NO_TARGET UINT32_MAX

/* Return the number of the step's operation in the body of its loop; -1: it is in none. */
static inline int32_t step_loop_number(const step *s)
{
    return s->loop ? (int32_t)(s->whole - s->loop->ops) : -1;
}

/* The peer of the step in a trace: -1 for none, or several. */
static inline int step_peer(const step *s)
{
    return s->end_count == 1 ? s->ends[0]->peer : -1;
}

#endif
