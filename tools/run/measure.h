/* Measurements of all ranks together, and a processor for each of them. */
#ifndef TOOLS_RUN_MEASURE_H
#define TOOLS_RUN_MEASURE_H

#include <stdbool.h>

#include <banyan/world.h>

/* On the clock that all processes of a machine share. */
typedef struct interval {
    double began, ended;
} interval;

/* Compute for each of `count` intervals the time from the first rank's beginning to the last rank's
 * end. Collective. */
banyan_status measure_durations(banyan_world *world, const interval *mine, size_t count,
                                double *seconds);

/* Keep the calling thread, rank `rank` of `ranks`, on a processor that no other rank is kept on.
 * Nothing happens where there are fewer processors than ranks. */
void bound_to_processor(int rank, int ranks);

/* True if there is a processor for the proxy of each rank, too. */
bool bound_leaves_room(int ranks);

/* Measure the bytes per second that all ranks together copy with memcpy, every rank `bytes` from
 * one buffer of its own to another, all at once. Collective. */
banyan_status memcpy_limit_measure(banyan_world *world, size_t bytes, double *bytes_per_s);

#endif
