/* The result of a simulation. */
#ifndef SIMULATE_SIMULATION_H
#define SIMULATE_SIMULATION_H

#include "simulate/engine/record.h"
#include "simulate/engine/sharing.h"
#include "simulate/topology/topology.h"

/* Make the result from the resources of resources_make and each rank's end time; it takes over the
 * record's steps. NO_MEMORY. */
banyan_status simulation_make(const banyan_topology *topology, int ranks, const sharing *shared,
                              const uint64_t *ends_ps, record *kept,
                              banyan_simulation **simulation);

#endif
