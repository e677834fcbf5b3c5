/* Banyan: how long a reshard takes on a machine, before there is one.
 *
 * All ranks of a reshard are planned in this process, by the code that a real world runs, and what
 * they send each other is simulated on a topology (banyan/simulate.h): as the direct service moves
 * it, in one pass and all at once, or as the copy pipeline does, in rounds through slots.
 * docs/simulate.md explains the model.
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

/* What all ranks of a reshard send each other. It does not change once it is made, so that threads
 * may share it. */
typedef struct banyan_traffic banyan_traffic;

/* Plan every rank of the world to the end. Errors are those of banyan_reshard_plan_create, from any
 * rank that meets one, and INVALID for more than BANYAN_MAX_RANKS. Any thread. */
BANYAN_API banyan_status banyan_traffic_plan(const banyan_plan_world *world,
                                             const banyan_reshard_options *options,
                                             banyan_traffic **traffic);
/* The same for a case, which is not needed afterwards. What the planner makes of it counts, not the
 * transfers that the case lists. */
BANYAN_API banyan_status banyan_traffic_plan_case(const banyan_megatron_case *loaded,
                                                  const banyan_reshard_options *options,
                                                  banyan_traffic **traffic);
/* NULL is ignored. */
BANYAN_API void banyan_traffic_destroy(banyan_traffic *traffic);

typedef struct banyan_traffic_info {
    int ranks;
    uint64_t transfers;                /* between two ranks */
    uint64_t bytes;                    /* of these */
    uint64_t local_bytes;              /* that ranks copy within their own memory */
    uint64_t pairs;                    /* of ranks of which one sends to the other */
    uint64_t most_sent, most_received; /* bytes of the rank that has most */
} banyan_traffic_info;

/* Sums over all ranks. */
BANYAN_API banyan_traffic_info banyan_traffic_describe(const banyan_traffic *traffic);

typedef enum banyan_service_kind {
    BANYAN_SERVICE_DIRECT,  /* straight to their place, all at once */
    BANYAN_SERVICE_PIPELINE /* packed into slots, sent, unpacked */
} banyan_service_kind;

typedef struct banyan_forecast_options {
    size_t size; /* of this struct; BANYAN_FORECAST_OPTIONS_INIT sets it */
    banyan_service_kind service;
    /* PIPELINE: as in banyan_copy_options. Here 0 is 16 MiB, what suits GPUs and their networks:
     * the default of host memory would only make a large world's simulation long. */
    uint64_t slot_bytes;
    bool optimal_rounds;
    bool steps; /* keep when each move began and ended: for the critical path and the trace */
} banyan_forecast_options;

#define BANYAN_FORECAST_OPTIONS_INIT BANYAN_INIT(banyan_forecast_options)

typedef struct banyan_forecast {
    double seconds;
    int critical_rank;   /* the last to be done */
    uint64_t batches;    /* PIPELINE: of all ranks; DIRECT: 0 */
    uint64_t rounds;     /* of the rank that has most: no rank can have fewer than its batches */
    uint64_t slot_bytes; /* PIPELINE: as they were; a rank's memory is four of them */
} banyan_forecast;

/* Run the traffic once on the topology, rank i on processor i. `simulation` may be NULL; its steps
 * are "copy", and "pack", "send" and "unpack" in lanes 0, 1 and 2 of the pipeline, or a lane for
 * each rank that a rank sends to. The topology must outlive it. The same arguments give the same
 * result. Errors: INVALID (more ranks than processors, a rank that cannot reach another, a slot
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
