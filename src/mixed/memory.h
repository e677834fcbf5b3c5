/* The memory of a context. */
#ifndef MIXED_MEMORY_H
#define MIXED_MEMORY_H

#include "mixed/mixed.h"

/* Find out whether GPUs have multicast: fills setup.multicast. Call it once the grid and the device
 * are known, before the engine is opened. Collective. */
banyan_status multicast_agree(banyan_mixed *mixed);

/* Pass the symmetric memory, which is zero, to the engine. Collective. */
banyan_status mixed_use_memory(banyan_mixed *mixed);

/* Return at least this many bytes of staging, valid until a call asks for more. Collective. */
banyan_status staging_take(banyan_mixed *mixed, uint64_t bytes, void **staging);

/* suspend: release the device's memory. resume: restore it at the former addresses. Local. After a
 * failure all of it is suspended. */
void staging_suspend(const banyan_mixed *mixed);
banyan_status staging_resume(const banyan_mixed *mixed);

void staging_free(banyan_mixed *mixed);

#endif
