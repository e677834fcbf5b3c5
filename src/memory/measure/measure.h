/* Measure which way to peers' ordinary memory is the fastest on this machine. */
#ifndef MEMORY_MEASURE_MEASURE_H
#define MEMORY_MEASURE_MEASURE_H

#include "memory/user/user.h"

/* Measure the ways in the set `ways` (bits): all ranks of the node read from each other at once, as
 * they do when weights move. `best` is equal on all of them. Collective over the world. */
banyan_status measure_ways(memory_space *space, user_memory *user, unsigned ways,
                           user_memory_way *best);

#endif
