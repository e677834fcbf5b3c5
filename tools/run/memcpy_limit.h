/* What the machine's memory gives: the bound that moving bytes is measured against. */
#ifndef TOOLS_MEMCPY_LIMIT_H
#define TOOLS_MEMCPY_LIMIT_H

#include <banyan/world.h>

/* Bytes that all ranks together copy in a second with memcpy, every rank `bytes` from one buffer of
 * its own to another, all at once. Collective. */
banyan_status memcpy_limit_measure(banyan_world *world, size_t bytes, double *bytes_per_s);

#endif
