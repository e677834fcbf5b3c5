/* What kernels have stored and others do not see yet.
 *
 * A GPU lets stores travel as they like until a release. Here a launch keeps them to itself until
 * one of its threads releases, it ends, or there are too many; its own threads see them at once. So
 * whoever takes data for arrived without a release behind it does not find it. With a seed some
 * stores, at random, are there at once. One launch at a time on a thread of the host. */
#ifndef EMULATION_STORES_H
#define EMULATION_STORES_H

#include <stddef.h>
#include <stdint.h>

void stores_begin(uint64_t seed);
void stores_end(void);

/* At most 16 bytes, aligned to their size, that lie in no two lines of 16. Outside of launches
 * nothing is kept. */
void emulated_store(void *to, const void *value, size_t bytes);
void emulated_load(void *value, const void *from, size_t bytes);
/* A release, by any thread of the launch. */
void emulated_release(void);

#endif
