/* The port channels of a shuffled run, with delayed requests. Puts reach the proxy at any moment
 * before the end of a flush, or before a later signal leaves, in any order among themselves. */
#ifndef EXECUTE_SHUFFLE_PORTS_H
#define EXECUTE_SHUFFLE_PORTS_H

#include "core/containers.h"
#include "execute/specialize/step.h"

/* A sequence of random numbers that a seed determines. */
typedef struct shuffle_random {
    uint64_t seed, drawn;
} shuffle_random;

static inline shuffle_random shuffle_random_from(uint64_t seed)
{
    return (shuffle_random){.seed = seed};
}

static inline uint64_t shuffle_next(shuffle_random *random)
{
    random->drawn++;
    return hash_bytes(&random->drawn, sizeof random->drawn, random->seed);
}

static inline uint64_t shuffle_below(shuffle_random *random, uint64_t bound)
{
    return shuffle_next(random) % bound;
}

/* Requests held for a channel; further ones are posted. */
#define HELD_MOST 32

typedef struct held_port {
    shuffle_random random;
    uint32_t count;
    port_request requests[HELD_MOST]; /* in posting order */
} held_port;

/* False: neither held nor posted, since the queue is full. Any thread. */
bool held_port_take(held_port *port, channel_end *end, const port_request *request);
/* Post one request that may go next. False: there is none, or the queue is full. Any thread. */
bool held_port_pass_on(held_port *port, channel_end *end);
/* Post all held requests. False: some remain, since the queue is full. Any thread. */
bool held_port_drain(held_port *port, channel_end *end);
/* Like held_port_drain, for the end of a run, except that puts without a later request may remain
 * for later runs. */
bool held_port_end(held_port *port, channel_end *end);

#endif
