/* The fastest routes through a topology. */
#ifndef SIMULATE_TOPOLOGY_ROUTES_H
#define SIMULATE_TOPOLOGY_ROUTES_H

#include "simulate/topology/topology.h"

typedef struct routes {
    const banyan_topology *topology;
    uint32_t **arrived_by; /* for each requested source: the link by which each vertex is reached */
} routes;

typedef struct route {
    ARRAY(uint32_t) links; /* the last one first */
    uint64_t latency_ps;
} route;

banyan_status routes_make(const banyan_topology *topology, routes *all);
void routes_free(routes *all);

/* Find the route with the least latency and, among equals, the fewest links. Processors do not
 * forward. `*there` is false when there is none. The route's memory is reused. */
banyan_status routes_find(routes *all, uint32_t from, uint32_t to, route *found, bool *there);
/* Find a route that must be there. INVALID. */
banyan_status routes_require(routes *all, uint32_t from, uint32_t to, route *found);
void route_free(route *old);

#endif
