/* What a thread block runs: a plan's operations, cut for one message size and element type. */
#ifndef EXECUTE_SPECIALIZE_STEP_H
#define EXECUTE_SPECIALIZE_STEP_H

#include "channel/counter.h"
#include "channel/port.h"
#include "channel/reduce.h"
#include "channel/spread.h"
#include "execute/specialize/step_kind.h"
#include "plan/geometry/geometry.h"
#include "plan/plan.h"

/* This rank's end of a memory or port channel. */
typedef struct channel_end {
    counter *incoming;         /* here; the peer adds to it */
    counter *outgoing;         /* at the peer */
    bell *bell;                /* the peer's */
    port_queue *queue;         /* PORT */
    _Atomic uint64_t consumed; /* signals that waits here have taken */
    atomic_flag posting;       /* one thread at a time */
    int peer;
    uint32_t number; /* among the rank's channels of the type */
} channel_end;

/* Sources, then destinations; a group's members are operands of their own. */
typedef struct step_operand {
    uint32_t base; /* rank × PLAN_BUFFERS + buffer */
    bool packets;
    bool past_cache; /* written, and not used again before it has left the caches */
} step_operand;

/* Where a step's operands lie, piece by piece: bytes, then an offset an operand (of packets as they
 * lie, twice the data's). */
typedef ARRAY(uint64_t) piece_words;

/* Of a piece's bytes: they are none of the message, but packets that are waited for and passed on
 * all the same, so that nobody gets ahead of what he would wait for in a longer one. */
#define STEP_PAD (UINT64_C(1) << 63)

typedef struct step {
    step_kind kind;
    uint32_t number;      /* of the operation in its thread block */
    const plan_op *op;    /* the operation, or what is done of it, for its pieces */
    const plan_op *whole; /* the operation as the plan has it */
    const plan_op *loop;  /* that it is in; NULL */

    step_operand *operands;
    uint32_t source_count, destination_count;
    spread_way way;       /* COPY */
    bool streams;         /* some destinations go past the caches */
    uint32_t target;      /* COMBINE: the operand that is reduced to; STEP_NO_TARGET: to room */
    uint64_t block_bytes; /* COMBINE: bytes at a time */
    reduce_fn reduce;
    uint64_t first_word, piece_count; /* outside of loops: in the cut's words */
    /* In a loop of `iterations`, those of iteration i lie at [iteration_at[i], iteration_at[i + 1])
     * in the cut's words; NULL: there are too many, and each is cut when it runs. */
    uint64_t *iteration_at;
    bool new_flags; /* every iteration's packets have a flag of their own */
    bell **knocks;  /* of those who may sleep until the packets come */
    uint32_t knock_count;

    channel_end **ends;
    uint32_t end_count;
    uint32_t barrier;    /* BARRIER: its place among the rank's */
    uint64_t iterations; /* LOOP */
    uint32_t first;      /* LOOP_END: the step to go back to; LOOP: the one behind its end */
} step;

static inline uint32_t step_base(int rank, plan_buffer buffer)
{
    return (uint32_t)rank * PLAN_BUFFERS + (uint32_t)buffer;
}

/* The switch channel that a GROUP operand goes through. */
static inline const plan_switch *step_group(const banyan_plan *plan, int rank,
                                            const plan_thread_block *block,
                                            const plan_operand *operand)
{
    return &plan->ranks[rank].switches[block->channels[PLAN_SWITCH][operand->reference]];
}

static inline uint32_t step_operand_count(const step *s)
{
    return s->source_count + s->destination_count;
}

/* Words from one piece to the next. */
static inline uint32_t step_piece_words(const step *s)
{
    return 1 + step_operand_count(s);
}

#define STEP_NO_TARGET UINT32_MAX

/* Who a trace says that the step is for: -1 for nobody, or several. */
static inline int step_peer(const step *s)
{
    return s->end_count == 1 ? s->ends[0]->peer : -1;
}

#endif
