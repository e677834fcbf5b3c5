/* Staging memory on a context's device, for data between two collectives. */
#ifndef MIXED_MEMORY_STAGING_H
#define MIXED_MEMORY_STAGING_H

#include "mixed/mixed.h"

/* Return at least this many bytes, valid until a call asks for more. Collective. */
banyan_status staging_take(banyan_mixed *mixed, uint64_t bytes, void **staging);

/* suspend: release the device's memory. resume: restore it at the former addresses. Local. After a
 * failure all of it is suspended. */
void staging_suspend(const banyan_mixed *mixed);
banyan_status staging_resume(const banyan_mixed *mixed);

void staging_free(banyan_mixed *mixed);

#endif
