/* Measure how long a joint action of all ranks took. */
#ifndef TOOLS_SPAN_H
#define TOOLS_SPAN_H

#include <banyan/world.h>

/* On the clock that all processes of a machine share. */
typedef struct span {
    double began, ended;
} span;

/* Compute for each of `count` spans the time from the first rank's beginning to the last rank's
 * end. Collective. */
banyan_status span_of_all(banyan_world *world, const span *mine, size_t count, double *seconds);

#endif
