/* Chains: sequences of actions in order. They are a rank's caller, its thread blocks, its port
 * channels, and operations' parts that write packets, whose ends can be observed one by one. */
#ifndef CHECK_MODEL_CHAINS_H
#define CHECK_MODEL_CHAINS_H

#include "plan/plan.h"

typedef enum chain_kind { CHAIN_CALLER, CHAIN_BLOCK, CHAIN_PORT, CHAIN_PART } chain_kind;

/* A rank's chains have consecutive numbers: the caller, thread blocks, port channels, parts of
 * operations that write packets. */
typedef struct chain_owner {
    int rank;
    chain_kind kind;
    uint32_t index;
    uint32_t caller; /* chain of the rank's caller */
} chain_owner;

typedef struct chain_list {
    chain_owner *list;
    uint32_t count;
    uint32_t *callers; /* of each rank */
    uint32_t **parts;  /* of each rank's thread blocks: its first part */
} chain_list;

/* Count the parts of these operations that write packets, loops' bodies counted once. */
uint64_t chain_packet_parts(const plan_op *ops, uint32_t count);

/* Number the chains. NO_MEMORY, UNSUPPORTED. */
banyan_status chains_make(const banyan_plan *plan, arena *memory, chain_list *made);

/* A thread block's times are its segments, from one synchronization of its threads to the next,
 * with the run in the upper bits. A caller's times are its runs, counted from one: time r is
 * everything before run r and after the run before. A port channel's times are the stretches
 * between flushes and signals. A part's times are the run and the iteration of its loop, as for a
 * thread block. */
#define CHAIN_SEGMENT_BITS 26

static inline uint32_t block_time(uint32_t run, uint32_t segment)
{
    return run << CHAIN_SEGMENT_BITS | segment;
}

static inline uint32_t block_time_run(uint32_t time)
{
    return time >> CHAIN_SEGMENT_BITS;
}

static inline uint32_t caller_time(uint32_t run)
{
    return run + 1;
}

#endif
