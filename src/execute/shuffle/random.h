/* A sequence of random numbers that a seed determines. */
#ifndef EXECUTE_SHUFFLE_RANDOM_H
#define EXECUTE_SHUFFLE_RANDOM_H

#include "core/containers.h"

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

#endif
