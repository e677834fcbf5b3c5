/* Edge colouring of a bipartite multigraph: as many rounds as the busiest rank has batches in one
 * direction, which is the minimum (König, 1916), in near-linear time.
 *
 * After N. Alon, "A simple algorithm for edge-coloring bipartite multigraphs" (2003), and H. N.
 * Gabow and O. Kariv, "Algorithms for edge coloring bipartite graphs and multigraphs" (1982). */
#ifndef COPY_SCHEDULE_COLOUR_H
#define COPY_SCHEDULE_COLOUR_H

#include "core/containers.h"

/* Largest accepted sum of all counts. */
#define COLOUR_MOST_BATCHES (UINT64_C(1) << 30)

/* `count` batches go from source to dest. */
typedef struct colour_pair {
    int source, dest;
    uint64_t count;
} colour_pair;

/* Batches of a pair take part in rounds [first_round, first_round + count). */
typedef struct colour_run {
    size_t pair; /* index into the pairs */
    uint64_t first_round, count;
} colour_run;

typedef struct colouring {
    ARRAY(colour_run) runs; /* by pair, then round; a pair's runs are not adjacent */
    uint64_t rounds;        /* the largest sum of counts with one source or one dest */
    uint64_t steps;         /* edges visited: the time is proportional to them */
} colouring;

/* Assign every batch a round in which its source sends nothing else and its dest receives nothing
 * else. Ranks are below `ranks`; a pair may be listed more than once. Equal pairs give equal
 * rounds. O(m log m) steps for m batches. INVALID for a rank out of range or more than
 * COLOUR_MOST_BATCHES; NO_MEMORY. */
banyan_status colour_rounds(const colour_pair *pairs, size_t pair_count, int ranks,
                            colouring *result);
void colouring_free(colouring *result);

#endif
