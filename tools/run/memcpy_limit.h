/* The bandwidth of the machine's memory, as a limit for moving bytes. */
#ifndef TOOLS_MEMCPY_LIMIT_H
#define TOOLS_MEMCPY_LIMIT_H

#include <banyan/world.h>

/* Measure the bytes per second that all ranks together copy with memcpy, every rank `bytes` from
 * one buffer of its own to another, all at once. Collective. */
banyan_status memcpy_limit_measure(banyan_world *world, size_t bytes, double *bytes_per_s);

#endif
