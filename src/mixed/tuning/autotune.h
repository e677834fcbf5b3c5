/* Which mode is fastest for which size: measured, read, selected. */
#ifndef MIXED_TUNING_AUTOTUNE_H
#define MIXED_TUNING_AUTOTUNE_H

#include "mixed/mixed.h"

/* Take these measurements, sorted by operation, size and mode, for the context's; the fastest of
 * those modes that are valid here is chosen for each size. When a rank has no memory for them all
 * keep those that they have. Collective. */
banyan_status autotune_take(banyan_mixed *mixed, const banyan_mixed_timing *timings, size_t count);

/* Choose anew among the measurements: other modes are valid now. */
void autotune_choose(banyan_mixed *mixed);

void autotune_free(banyan_mixed *mixed);

#endif
