/* Work that ranks in networks of their own repeat, while test_network.c loses some of them. */
#ifndef TESTS_UCX_NETWORK_WORK_H
#define TESTS_UCX_NETWORK_WORK_H

#include "core/status.h"
#include "support/test.h"

/* Nodes have two ranks each, in rank order. */
#define WORK_NODE_RANKS 2
/* So many consecutive steps include every kind. */
#define WORK_CYCLE 8
/* Steps have numbers below this one. */
#define WORK_STEPS (1 << 14)

typedef struct work {
    const char *name;
    /* Return the state of the work in a world. Collective. */
    void *(*open)(banyan_world *world, const char *backend);
    /* Run a step, whose data differs from that of the step before, and compare every element of its
     * results. Returns its error. Collective. */
    banyan_status (*step)(void *state, int number);
    /* Check the state that the last step has left, which returned `status`, and free it. */
    void (*close)(void *state, banyan_status status);
    const char *backend; /* NULL: the default */
} work;

/* Tensors that a copy backend moves, and sums by a communicator. */
extern const work work_weights_direct, work_weights_pipeline;
/* Mixed collectives on the host, by the modes that work between nodes. */
extern const work work_mixed;
/* Plans that an executor holds, with port channels between the nodes. */
extern const work work_plans;

#endif
