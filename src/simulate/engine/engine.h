/* A plan at work on a topology: what the parts of the simulation share.
 *
 * Lanes do things: a lane for each thread block of each rank, and one for each port channel, whose
 * transfers go on by themselves. A lane is either in the agenda (it knows when it goes on), or in
 * the list of those who wait for something that another lane does. */
#ifndef SIMULATE_ENGINE_ENGINE_H
#define SIMULATE_ENGINE_ENGINE_H

#include "core/containers/map.h"
#include "plan/barrier_numbers.h"
#include "plan/check/packet_writers.h"
#include "plan/geometry/geometry.h"
#include "plan/pairs.h"
#include "simulate/engine/caches.h"
#include "simulate/engine/record.h"
#include "simulate/engine/sharing.h"
#include "simulate/topology/routes.h"

#define NO_LANE UINT32_MAX

/* Something that was done at a time, by a step of the record. */
typedef struct happening {
    uint64_t time_ps;
    uint32_t step;
} happening;

/* Thread blocks that wait for the same, the first come first: linked through `next_waiter`. */
typedef struct waiters {
    uint32_t first, last; /* lanes */
} waiters;

/* What was signalled or released, and when it comes in; who waits for more. */
typedef struct tokens {
    uint64_t initial; /* there from the start, and not taken yet */
    ARRAY(happening) come;
    size_t taken;
    waiters waiting;
} tokens;

typedef struct meeting {
    uint32_t arrived;
    uint64_t rounds; /* that are over */
    happening last;  /* arrival, of the last round that is over */
    waiters waiting;
} meeting;

/* What an operation does, one after the other. */
typedef enum block_stage {
    STAGE_LAUNCH,
    STAGE_BEGIN,
    STAGE_AWAIT, /* what others do first */
    STAGE_COST,  /* its fixed time */
    STAGE_MOVE,  /* its bytes: of its first pair, of the next */
    STAGE_MOVED,
    STAGE_TELL,  /* those who wait for it */
    STAGE_DRAIN, /* wait for the port channels' transfers */
    STAGE_DRAINED,
    STAGE_END
} block_stage;

typedef struct sim_block {
    int rank;
    const plan_thread_block *block;
    uint32_t at, inner; /* operation, and operation in its loop */
    uint64_t iteration, iterations;
    block_stage stage;
    uint32_t taken; /* tokens, pairs or channels of the operation that are done with */
    bool arrived;   /* at a barrier, when `rounds` of it were over */
    uint64_t rounds;
    step_record doing;
    happening awaited;    /* the last of what it waited for */
    uint64_t land_ps;     /* how much later what it wrote has arrived everywhere */
    bool publishes;       /* it has written what others touch since its last signal */
    uint32_t next_waiter; /* lane */
} sim_block;

/* What a thread block asks of a port channel. */
typedef struct port_request {
    const plan_thread_block *block;
    const plan_op *op, *loop;
    uint64_t iteration;
    uint32_t pair;     /* destination, of a put */
    bool signals;      /* a signal, not a put */
    bool is_last;      /* of the operation's puts */
    uint64_t ready_ps; /* when the proxy hands it on */
    step_record doing;
} port_request;

/* A port channel's end that sends: one transfer at a time, in the order of the requests. */
typedef struct port_lane {
    int rank;
    uint32_t channel;
    ARRAY(port_request) requests;
    size_t begun, ended; /* of them; behind the end all are forgotten */
    uint64_t posted, done;
    happening acked; /* when the last one that is done was known to be */
    uint64_t land_ps;
    uint32_t last_step;
    bool moves;
    waiters waiting; /* for `done` to grow */
} port_lane;

typedef struct sim_rank {
    const processor_kind *kind;
    block_rates rates;                   /* for what it touches in this run */
    block_rates ring_rates;              /* for what it touches in scratch that is gone round in */
    tokens *signals[PLAN_CHANNEL_TYPES]; /* of each channel */
    tokens *semaphores;
    uint32_t first_block, first_port; /* lanes */
    uint64_t requests;                /* posted on its port channels and not done */
    uint64_t proxy_free_ps;
    uint32_t *switches; /* of each switch channel: the vertex that it goes by */
    waiters for_packets;
} sim_rank;

typedef struct engine {
    const banyan_plan *plan;
    const banyan_topology *topology;
    plan_geometry geometry;
    plan_pairs pairs;
    routes routes;
    route way; /* the last one asked for */
    arena memory;
    agenda agenda;
    sharing sharing;
    packet_writers packets;
    caches caches; /* nothing without processors that share a memory */
    record record;
    sim_rank *ranks;
    sim_block *blocks;
    port_lane *ports;
    uint32_t block_count, port_count;
    plan_barrier_numbers meetings; /* places in the list */
    ARRAY(meeting) meeting_list;
    uint64_t now_ps;
    uint64_t *ends_ps; /* of each rank's last lane */
} engine;

banyan_status engine_make(const banyan_plan *plan, const banyan_topology *topology,
                          const banyan_simulate_options *options, engine *made);
banyan_status engine_run(engine *all);
void engine_free(engine *old);

/* ---- waiting (tokens.c) ---- */

void waiters_add(engine *all, waiters *list, uint32_t lane);
/* All of them look again, now. */
void waiters_wake(engine *all, waiters *list);
bool tokens_add(engine *all, tokens *to, happening what);
/* False, and the lane is in the list, when there is none. */
bool tokens_take(engine *all, tokens *from, uint32_t lane, happening *what);
/* The rank's signal arrives at the other end. */
banyan_status signal_peer(engine *all, int rank, plan_channel_type type, uint32_t channel,
                          happening what);
/* Packets for the rank are on their way: a packets_reached. */
void readers_wake(void *context, int rank);
/* At a barrier: true when the round is over that the block came for. NO_MEMORY. */
banyan_status meeting_attend(engine *all, uint32_t lane, const plan_op *op, bool *over);

/* ---- bytes (move.c) ---- */

/* What an operation, or one pair of it, moves. */
typedef struct sim_move {
    int rank;
    const plan_thread_block *block;
    const plan_op *op, *loop;
    uint64_t iteration;
    bool by_port;
} sim_move;

/* How long until the first byte of a peer's memory is here; 0: only its own is read, or shared
 * memory, whose signals take as much longer. */
banyan_status move_reach(engine *all, const sim_move *move, uint64_t *latency_ps);
/* In shared memory: does it write what others touch? */
bool move_publishes(const engine *all, const sim_move *move);
/* Start the lane's flow. `*flows` is false when there are no bytes; `*land_ps`: what is written has
 * arrived so much after the flow's end. */
banyan_status move_begin(engine *all, uint32_t lane, const sim_move *move, bool *flows,
                         uint64_t *land_ps);
banyan_status engine_latency(engine *all, int from, int to, uint64_t *latency_ps);
/* The switch of a switch channel of the rank. UNSUPPORTED. */
banyan_status engine_switch(engine *all, int rank, uint32_t channel, uint32_t *vertex);

/* ---- lanes ---- */

/* Do what is to be done now, until the lane waits (block.c, port.c). */
banyan_status block_advance(engine *all, uint32_t lane);
banyan_status port_advance(engine *all, uint32_t lane);
/* The block's operation posts its requests; `by` is its step. */
banyan_status requests_post(engine *all, const sim_block *block, const plan_op *op,
                            const plan_op *loop, uint32_t step);
static inline uint32_t port_of(const engine *all, int rank, uint32_t channel)
{
    return all->ranks[rank].first_port + channel;
}

/* The sentence for a plan that hangs (hang.c). */
banyan_status engine_hangs(const engine *all);

#endif
