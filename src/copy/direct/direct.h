/* The direct backend: one pass from a strided source to its strided destination. */
#ifndef COPY_DIRECT_DIRECT_H
#define COPY_DIRECT_DIRECT_H

#include "copy/service/backends.h"
#include "copy/strided/strided.h"

/* Return the ranks of the world that this one cannot serve, given the backend's open state. */
uint64_t direct_unreachable_peers(const void *state);

#endif
