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

/* Open the joined world at this rank, which is its number `rank`. `guard` may end this early; so
 * does the end of `world`. Call join_agree afterwards, also after a failure. */
banyan_status join_open(banyan_world *world, const struct join_plan *plan, int rank,
                        const struct join_guard *guard, banyan_world **opened);

/* Agree on whether all ranks of `world` have opened the joined world: `status` is this rank's. On
 * failure no rank has it any more. Collective over `world`. */
banyan_status join_agree(banyan_world *world, const struct join_plan *plan, banyan_status status,
                         banyan_world *opened, banyan_world **joined);

#endif
