/* Does the kernel let the node's ranks reach each other's memory? */
#ifndef MEMORY_MEASURE_PROBE_H
#define MEMORY_MEASURE_PROBE_H

#include "memory/space.h"

/* Every rank reads and writes a word of every peer of its node. `works` is equal on all of them;
 * where it is false, `reason` says what the kernel said. Collective. */
banyan_status probe_cma(memory_space *space, bool *works, char *reason, size_t reason_bytes);

#endif
