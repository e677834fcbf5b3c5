/* Open a joined world: the part that both sides have in common. */
#ifndef WORLD_CONNECT_JOIN_H
#define WORLD_CONNECT_JOIN_H

#include <banyan/connect.h>

#include "world/bootstrap/rendezvous.h"

/* Longest time between two messages of rank 0 to the other ranks, which wait for it. */
uint64_t connect_slice_ns(const banyan_world *world);

/* The description of a joined world, as rank 0 broadcasts it. */
struct join_plan {
    banyan_unique_id id;
    int listening_size, size;
    uint64_t limit_ns;   /* of opening it */
    uint64_t timeout_ns; /* of its waits */
};

/* Open the joined world, of which this rank is number `rank`. `guard` may end this early; so does
 * the end of `world`. On failure no rank of `world` has the joined world. Collective over `world`.
 */
banyan_status join_worlds(banyan_world *world, const struct join_plan *plan, int rank,
                          const struct join_guard *guard, banyan_world **joined);

#endif
