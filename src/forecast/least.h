/* The least that can cross the network: what each node needs and does not hold, from the layouts of
 * its ranks. */
#ifndef FORECAST_LEAST_H
#define FORECAST_LEAST_H

#include "reshard/planner/rank.h"
#include "reshard/planner/sources.h"

/* Boxes of one tensor on one node. */
typedef struct least_tensor {
    planner_boxes needed, held; /* the needed ones are disjoint */
    size_t elem_bytes;
} least_tensor;

/* Zeroed is empty. */
typedef struct least_network {
    int node;       /* whose boxes are collected */
    uint64_t bytes; /* of the nodes before it */
    hash_map index; /* of names */
    arena names;
    ARRAY(least_tensor) tensors;
} least_network;

/* Add the layouts of a rank, in rank order. */
banyan_status least_network_add(least_network *least, const banyan_reshard_sample_world *world,
                                int rank, const planner_result *result);
/* After the last rank. */
banyan_status least_network_finish(least_network *least, uint64_t *bytes);
void least_network_free(least_network *least);

#endif
