/* Banyan: predict the time that a reshard takes on a machine, without the machine.
 *
 * This process plans all ranks of the reshard, with the planner of a real world. It then simulates
 * their transfers on a topology (simulate.h). The direct copy service moves all of them at once.
 * The copy pipeline moves them in rounds, through staging slots. In a world of several nodes, data
 * that ranks pass on within their nodes follows in waves (reshard.h). docs/internals/simulation.md
 * describes the model.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef BANYAN_FORECAST_H
#define BANYAN_FORECAST_H

#include <banyan/reshard.h>
#include <banyan/simulate.h>

#ifdef __cplusplus
extern "C" {
#endif

/* All transfers of a reshard. It does not change after it is made: several threads may use it at
 * the same time. */
typedef struct banyan_traffic banyan_traffic;

/* Plan every rank of the world described by `world` (reshard.h). `options` NULL means the defaults.
 * The caller owns the traffic. Errors: those of banyan_reshard_plan_create at any rank, and INVALID
 * (the world size is not from 1 to BANYAN_MAX_RANKS). Any thread. */
BANYAN_API banyan_status banyan_traffic_plan(const banyan_reshard_sample_world *world,
                                             const banyan_reshard_options *options,
                                             banyan_traffic **traffic);

/* Plan the reshard of a loaded case, which is not needed afterwards. The planner computes the
 * transfers; those that the case lists do not matter. Otherwise as banyan_traffic_plan. */
BANYAN_API banyan_status banyan_traffic_plan_case(const banyan_megatron_case *loaded,
                                                  const banyan_reshard_options *options,
                                                  banyan_traffic **traffic);

/* Free traffic. NULL is ignored. */
BANYAN_API void banyan_traffic_destroy(banyan_traffic *traffic);

/* Sums over all ranks, unless stated otherwise. */
typedef struct banyan_traffic_info {
    int ranks;                         /* number of ranks */
    uint64_t transfers;                /* between two ranks */
    uint64_t bytes;                    /* of these transfers */
    uint64_t local_bytes;              /* that ranks copy within their own memory */
    uint64_t pairs;                    /* (sender, receiver) pairs with at least one transfer */
    uint64_t most_sent, most_received; /* bytes of one rank: maximum over the ranks */
} banyan_traffic_info;

/* Return the properties of the traffic. Any thread. */
BANYAN_API banyan_traffic_info banyan_traffic_describe(const banyan_traffic *traffic);

/* Load of several links: those with at least one byte. */
typedef struct banyan_traffic_load {
    uint64_t links;       /* number of links */
    uint64_t most, least; /* bytes of one of them */
    uint64_t bytes;       /* of all */
} banyan_traffic_load;

/* Bytes that cross links. Each rank has a network card of its own. */
typedef struct banyan_traffic_links {
    int nodes;                  /* number of nodes (reshard.h: ranks_per_node) */
    uint64_t turns;             /* in which a run goes, if it has stages; otherwise 0 */
    banyan_traffic_load out;    /* of network cards */
    banyan_traffic_load in;     /* of network cards */
    banyan_traffic_load pairs;  /* from one node to another */
    banyan_traffic_load inside; /* from one rank to another of its node */
    /* The least that can cross the network: every element once to each node that needs it and does
     * not hold it in the source. 0 if a transform is among the options. */
    uint64_t least_bytes;
} banyan_traffic_links;

/* Compute the loads of links. Errors: NO_MEMORY. Any thread. */
BANYAN_API banyan_status banyan_traffic_describe_links(const banyan_traffic *traffic,
                                                       banyan_traffic_links *links);

/* Service that carries the traffic, as in copy.h. */
typedef enum banyan_forecast_service {
    BANYAN_FORECAST_DIRECT,  /* every transfer goes straight to its destination, all at once */
    BANYAN_FORECAST_PIPELINE /* transfers are packed into slots, sent and unpacked, in rounds */
} banyan_forecast_service;

/* Options of banyan_traffic_simulate. */
typedef struct banyan_forecast_options {
    size_t size;                     /* of this struct; BANYAN_FORECAST_OPTIONS_INIT sets it */
    banyan_forecast_service service; /* that carries the traffic */
    /* PIPELINE: bytes of a slot. 0: 16 MiB, which suits GPUs and their networks. The default of the
     * service for host memory is smaller and would only slow down the simulation of a large world.
     */
    uint64_t slot_bytes;
    bool optimal_rounds; /* PIPELINE: as in banyan_copy_options (copy.h) */
    bool steps; /* record the start and end of every move, for the critical path and traces */
} banyan_forecast_options;

#define BANYAN_FORECAST_OPTIONS_INIT BANYAN_INIT(banyan_forecast_options)

/* Predicted time of the traffic, and what determines it. */
typedef struct banyan_forecast {
    double seconds;      /* from the start of all ranks to the end of the last one */
    int critical_rank;   /* the rank that finishes last */
    uint64_t batches;    /* PIPELINE: sent by all ranks; DIRECT: 0 */
    uint64_t rounds;     /* PIPELINE: of one rank, at least its batches; the maximum */
    uint64_t slot_bytes; /* PIPELINE: as used; a rank has four slots */
} banyan_forecast;

/* Simulate the traffic once on the topology, with rank i on processor i. `options` NULL means the
 * defaults. The simulation is deterministic. If `simulation` is not NULL, the caller owns the
 * result that it receives; the topology must outlive it. Its steps are "copy", and for the pipeline
 * "pack", "send" and "unpack" in lanes 0, 1 and 2. The direct service has a lane for each peer of a
 * rank. Errors: INVALID (more ranks than processors; a rank that cannot reach a peer; a slot
 * smaller than an element), NO_MEMORY. Any thread. */
BANYAN_API banyan_status banyan_traffic_simulate(const banyan_traffic *traffic,
                                                 const banyan_topology *topology,
                                                 const banyan_forecast_options *options,
                                                 banyan_forecast *forecast,
                                                 banyan_simulation **simulation);

#ifdef __cplusplus
}
#endif
#endif
