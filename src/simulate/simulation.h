/* The result of a simulation. */
#ifndef SIMULATE_SIMULATION_H
#define SIMULATE_SIMULATION_H

#include "simulate/engine/record.h"
#include "simulate/engine/sharing.h"
#include "simulate/topology/topology.h"

/* Of what resources_make has made for so many ranks, and when each rank ended. The record's steps
 * become the result's. NO_MEMORY.
 */
banyan_status simulation_make(const banyan_topology *topology, int ranks, const sharing *shared,
                              const uint64_t *ends_ps, record *kept,
                              banyan_simulation **simulation);

#endif
