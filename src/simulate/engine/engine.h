/* State of a simulated plan on a topology, shared by the parts of the simulation.
 *
 * Each thread block of each rank has a lane, and so has each port channel, whose transfers proceed
 * by themselves. A lane is either in the agenda (its next time is known), or in a list of lanes
 * that wait for another lane. */
#ifndef SIMULATE_ENGINE_ENGINE_H
#define SIMULATE_ENGINE_ENGINE_H

#include "plan/packet_writers.h"
#include "simulate/engine/caches.h"
#include "simulate/engine/record.h"
#include "simulate/engine/sharing.h"
#include "simulate/topology/routes.h"

#define NO_LANE UINT32_MAX

/* Thread blocks that wait for one event, in order of arrival: linked through `next_waiter`. */
typedef struct waiters {
    uint32_t first, last; /* lanes */
} waiters;

/* The stages of an operation, in order. */
typedef enum block_stage {
    STAGE_LAUNCH,
    STAGE_BEGIN,
    STAGE_WAIT, /* for others */
    STAGE_COST, /* its fixed time */
    STAGE_MOVE, /* its bytes, pair by pair */
    STAGE_MOVED,
    STAGE_GIVE,  /* signals, releases, packets */
    STAGE_DRAIN, /* wait for the port channels' transfers */
    STAGE_DRAINED,
    STAGE_END
} block_stage;

typedef struct sim_block {
    plan_position *pos;
    block_stage stage;
    uint32_t done; /* parts or channels of the operation */
    step_record doing;
    plan_event waited_for; /* the last event that it waited for */
    uint64_t land_ps;      /* delay until its writes have arrived everywhere */
    bool publishes;        /* since its last signal it has written data that others touch */
    uint32_t next_waiter;  /* lane */
} sim_block;

/* A thread block's request to a port channel. */
typedef struct sim_port_request {
    const plan_thread_block *block;
    const plan_op *op, *loop;
    uint64_t iteration;
    uint32_t pair;     /* destination, of a put */
    bool signals;      /* a signal, not a put */
    bool is_last;      /* of the operation's puts */
    uint64_t ready_ps; /* time when the proxy issues it */
    step_record doing;
} sim_port_request;

/* The sending end of a port channel: one transfer at a time, in the order of the requests. */
typedef struct port_lane {
    int rank;
    uint32_t channel;
    ARRAY(sim_port_request) requests;
    size_t begun, ended; /* counts of requests; after the last ends the list is cleared */
    uint64_t posted, done;
    plan_event acked; /* time when the last completed one was acknowledged */
    uint64_t land_ps;
    uint32_t last_step;
    bool moves;
    waiters waiting; /* waits for `done` to grow */
} port_lane;

typedef struct sim_rank {
    const processor_kind *kind;
    block_rates rates;      /* for the memory that it touches in this run */
    block_rates ring_rates; /* for scratch that is used in rounds */
    uint32_t first_port;    /* lane */
    uint64_t requests;      /* posted on its port channels and not done */
    uint64_t proxy_free_ps;
    uint32_t *switches; /* for each switch channel: its vertex */
    waiters for_packets;
} sim_rank;

typedef struct sim_engine {
    const banyan_plan *plan;
    const banyan_topology *topology;
    plan_geometry geometry;
    plan_stepper stepper;                     /* its thread blocks have the first lanes */
    waiters *token_waiters, *barrier_waiters; /* of the stepper's counters and barriers */
    routes routes;
    route way; /* the last route */
    arena memory;
    agenda agenda;
    sharing sharing;
    packet_writers packets;
    caches caches; /* empty unless processors share a memory */
    record record;
    sim_rank *ranks;
    sim_block *blocks;
    port_lane *ports;
    uint32_t port_count;
    uint64_t now_ps;
    uint64_t *ends_ps; /* of each rank's last lane */
} sim_engine;

banyan_status sim_make(const banyan_plan *plan, const banyan_topology *topology,
                       const banyan_simulate_options *options, sim_engine *made);
banyan_status sim_run(sim_engine *all);
void sim_free(sim_engine *old);

/* Waiting: waiting.c. */

void waiters_add(sim_engine *all, waiters *list, uint32_t lane);
/* Make all of them check again, now. */
void waiters_wake(sim_engine *all, waiters *list);
/* Give a token to the counter; the first thread block that waits for one checks again. NO_MEMORY.
 */
banyan_status sim_give(sim_engine *all, uint32_t counter, plan_event when);
/* The rank's signal arrives at the other end. */
banyan_status signal_peer(sim_engine *all, int rank, plan_channel_type type, uint32_t channel,
                          plan_event when);
/* Deliver packets for the rank: a packets_reached callback. */
void readers_wake(void *context, int rank);

/* Bytes: move.c. */

/* The data that an operation, or one pair of it, moves. */
typedef struct sim_move {
    int rank;
    const plan_thread_block *block;
    const plan_op *op, *loop;
    uint64_t iteration;
    bool by_port;
} sim_move;

/* Return the time until the first byte of a peer's memory arrives; 0 for own memory and for shared
 * memory, whose signals take longer instead. */
banyan_status move_reach(sim_engine *all, const sim_move *move, uint64_t *latency_ps);
/* True if it writes, in shared memory, data that others touch. */
bool move_publishes(const sim_engine *all, const sim_move *move);
/* Start the lane's flow. `*flows` is false when there are no bytes; `*land_ps` is the delay from
 * the flow's end until the written data has arrived. */
banyan_status move_begin(sim_engine *all, uint32_t lane, const sim_move *move, bool *flows,
                         uint64_t *land_ps);
banyan_status sim_latency(sim_engine *all, int from, int to, uint64_t *latency_ps);

/* Advance the lane until it waits (block.c, port.c). */
banyan_status block_advance(sim_engine *all, uint32_t lane);
banyan_status port_advance(sim_engine *all, uint32_t lane);
/* Post the requests of the block's operation; `by` is its step. */
banyan_status requests_post(sim_engine *all, const sim_block *block, const plan_op *op,
                            const plan_op *loop, uint32_t step);
static inline uint32_t port_of(const sim_engine *all, int rank, uint32_t channel)
{
    return all->ranks[rank].first_port + channel;
}

#endif
