/* Test whether the kernel lets the node's ranks access each other's memory. */
#ifndef MEMORY_MEASURE_PROBE_H
#define MEMORY_MEASURE_PROBE_H

#include "memory/space.h"

/* Every rank reads and writes a word of every peer on its node. `works` is equal on all of them; if
 * false, `reason` is the kernel's error. Collective. */
banyan_status probe_cma(memory_space *space, bool *works, char *reason, size_t reason_bytes);

#endif
