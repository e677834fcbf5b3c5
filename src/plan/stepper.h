/* Step the thread blocks of a plan through their operations: positions, loops, tokens, barriers.
 *
 * The stepper knows what an operation needs before it can go on, and what it gives to others. The
 * caller decides which thread block continues next, how long an operation takes, and what a token
 * carries. It settles a position, takes the tokens of the operation at hand or arrives at its
 * barrier, performs the operation, gives its tokens, and goes on to the next operation. */
#ifndef PLAN_STEPPER_H
#define PLAN_STEPPER_H

#include "core/containers.h"
#include "plan/geometry/geometry.h"

#define PLAN_NONE UINT32_MAX

/* A moment in the caller's count of time, and the caller's step that it comes from. */
typedef struct plan_event {
    uint64_t when;
    uint32_t step;
} plan_event;

static inline void plan_event_raise(plan_event *latest, plan_event other)
{
    if (other.when >= latest->when)
        *latest = other;
}

/* The receiving end of a memory or port channel, whose tokens are signals, or a semaphore. */
typedef struct plan_counter {
    int rank;
    plan_channel_type type; /* NO_CHANNEL: a semaphore */
    uint32_t number;        /* of the channel or semaphore, at its rank */
    uint64_t initial;       /* tokens that it has at first */
    uint64_t given, taken;
    ARRAY(plan_event) events; /* of tokens that were given and, but for the first, not taken */
} plan_counter;

/* Give a token. NO_MEMORY. */
bool plan_counter_give(plan_counter *to, plan_event when);
/* Take the oldest token, and raise `*latest` to its event. False: there is none. */
bool plan_counter_take(plan_counter *from, plan_event *latest);

typedef struct plan_barrier {
    int rank;
    uint32_t number, members; /* as in the plan */
    uint32_t arrived;
    uint64_t rounds;       /* that are complete */
    plan_event last, next; /* the latest arrival of the last complete round, and of this one */
} plan_barrier;

/* The position of a thread block: the operation at hand, and how far it has come. */
typedef struct plan_position {
    int rank;
    uint32_t number; /* of the thread block, in its rank */
    const plan_thread_block *block;
    uint32_t at, inner; /* operation, and operation in its loop */
    uint64_t iteration, iterations;
    uint32_t taken; /* tokens that the operation at hand has taken */
    bool arrived;   /* at its barrier, after `rounds` complete rounds */
    uint64_t rounds;
} plan_position;

typedef struct plan_stepper {
    const banyan_plan *plan;
    const plan_geometry *geometry;
    /* Counters of one rank after the other: its memory channels, port channels and semaphores. */
    plan_counter *counters;
    uint32_t counter_count;
    uint32_t *peers;         /* for each channel's counter: the one to which the channel signals */
    uint32_t *first_counter; /* of each rank */
    plan_position *blocks;   /* of one rank after the other */
    uint32_t block_count;
    uint32_t *first_block; /* of each rank, and one more */
    ARRAY(plan_barrier) barriers;
    hash_map barrier_places; /* from rank and number to the index in the list */
    arena memory;
} plan_stepper;

/* Stand before the first operation of every thread block. NO_MEMORY, UNSUPPORTED. */
banyan_status plan_stepper_make(const banyan_plan *plan, const plan_geometry *geometry,
                                plan_stepper *made);
void plan_stepper_free(plan_stepper *old);

/* Return the thread block to its first operation. */
void plan_position_reset(plan_position *by);
/* Pass loops without iterations or operations. False: the thread block has ended. */
bool plan_position_settle(const plan_stepper *all, plan_position *by);
/* Go from the operation at hand to the one after it, or to the first of the next iteration. */
void plan_position_next(plan_position *by);

static inline bool plan_position_ended(const plan_position *by)
{
    return by->at >= by->block->op_count;
}
/* Return the loop that the position is in; NULL: none. */
static inline const plan_op *plan_position_loop(const plan_position *by)
{
    const plan_op *op = &by->block->ops[by->at];
    return op->kind == PLAN_PIPELINE ? op : NULL;
}
/* Return the operation at hand; in a loop, the one in its body. */
static inline const plan_op *plan_position_op(const plan_position *by)
{
    const plan_op *op = &by->block->ops[by->at];
    return op->kind == PLAN_PIPELINE ? &op->ops[by->inner] : op;
}

/* Return the number of tokens that one execution of the operation gives, or takes. */
uint32_t plan_op_gives(const plan_op *op);
uint32_t plan_op_takes(const plan_op *op);

static inline uint32_t plan_stepper_channel(const plan_stepper *all, int rank,
                                            plan_channel_type type, uint32_t channel)
{
    const uint32_t *counts = all->plan->ranks[rank].channel_count;
    return all->first_counter[rank] + (type == PLAN_PORT ? counts[PLAN_MEMORY] : 0) + channel;
}
/* Return the counter of the k-th token that an operation of the thread block gives, or takes.
 * PLAN_NONE: the channel has no other end. */
uint32_t plan_stepper_given(const plan_stepper *all, const plan_position *by, const plan_op *op,
                            uint32_t k);
uint32_t plan_stepper_taken(const plan_stepper *all, const plan_position *by, const plan_op *op,
                            uint32_t k);
/* Take the tokens of the operation at hand one by one. False: the next one is not there yet; then
 * call again later. */
bool plan_stepper_take(plan_stepper *all, plan_position *by, plan_event *latest);

uint32_t plan_stepper_barrier(const plan_stepper *all, const plan_position *by, const plan_op *op);
/* Arrive, once for each visit. True if this completes the round. */
bool plan_barrier_arrive(plan_barrier *at, plan_position *by, plan_event when);
/* True if the round for which the thread block has arrived is complete. */
bool plan_barrier_pass(const plan_barrier *at, plan_position *by);

/* A thread block waits for tokens, at a barrier or for packets. Return one that could still provide
 * these after what it waits for itself; PLAN_NONE: there is none. */
uint32_t plan_stepper_helper(const plan_stepper *all, const plan_position *by);
/* Describe what it waits for: "a signal of rank 1 on memory channel 0". */
#define PLAN_WANT_BYTES 160
void plan_stepper_describe(const plan_stepper *all, const plan_position *by,
                           char text[PLAN_WANT_BYTES]);

#endif
