/* Stores of kernels that are not yet visible to others.
 *
 * A GPU may make stores visible in any order until a release. Here a launch buffers its stores
 * until one of its threads releases, the launch ends, or there are too many; its own threads see
 * them at once. So a thread that reads data without a release after the store does not find it.
 * With a seed, some stores become visible at once, at random. One launch at a time on a host
 * thread. */
#ifndef EMULATION_STORES_H
#define EMULATION_STORES_H

#include <stddef.h>
#include <stdint.h>

void stores_begin(uint64_t seed);
void stores_end(void);

/* At most 16 bytes, aligned to their size, within a line of 16. Outside of launches nothing is
 * buffered. */
void emulated_store(void *to, const void *value, size_t bytes);
void emulated_load(void *value, const void *from, size_t bytes);
/* A release, by any thread of the launch. */
void emulated_release(void);

#endif
