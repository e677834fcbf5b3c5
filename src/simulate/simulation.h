/* The resources and the result of a simulation. */
#ifndef SIMULATE_SIMULATION_H
#define SIMULATE_SIMULATION_H

#include "simulate/engine/record.h"
#include "simulate/engine/sharing.h"
#include "simulate/topology/topology.h"

/* The shared resources of a simulation: links, then the ranks' memories, then the thread blocks
 * that each rank can run at once (their time in place of bytes). */

/* A thread block's second in place of a link's bytes, of similar magnitude. */
#define BLOCK_SECOND 1e12

/* Make the resources; rank i is processor i. NO_MEMORY. */
banyan_status resources_make(const banyan_topology *topology, uint32_t ranks, uint32_t flow_count,
                             agenda *ends, sharing *made);

static inline uint32_t resource_memory(const banyan_topology *topology, int rank)
{
    return (uint32_t)topology->links.count + (uint32_t)rank;
}

static inline uint32_t resource_workers(const banyan_topology *topology, int ranks, int rank)
{
    return (uint32_t)topology->links.count + (uint32_t)ranks + (uint32_t)rank;
}

/* Make the result from the resources of resources_make and each rank's end time; it takes over the
 * record's steps. NO_MEMORY. */
banyan_status simulation_make(const banyan_topology *topology, int ranks, const sharing *shared,
                              const uint64_t *ends_ps, record *kept,
                              banyan_simulation **simulation);

#endif
