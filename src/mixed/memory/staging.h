/* Memory on a context's device for what collectives leave between two of them. */
#ifndef MIXED_MEMORY_STAGING_H
#define MIXED_MEMORY_STAGING_H

#include "mixed/mixed.h"

/* At least so many bytes, until the next call asks for more. Collective. */
banyan_status staging_take(banyan_mixed *mixed, uint64_t bytes, void **staging);

/* The device's memory is released and comes back, at the same addresses. Local. After a failure all
 * of it is suspended. */
void staging_suspend(const banyan_mixed *mixed);
banyan_status staging_resume(const banyan_mixed *mixed);

void staging_free(banyan_mixed *mixed);

#endif
