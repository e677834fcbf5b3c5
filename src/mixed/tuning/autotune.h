/* The fastest mode for each size: measure, read, select. */
#ifndef MIXED_TUNING_AUTOTUNE_H
#define MIXED_TUNING_AUTOTUNE_H

#include "mixed/mixed.h"

/* Replace the context's measurements by these, sorted by operation, size and mode, and choose the
 * fastest valid mode for each size. If a rank is out of memory, all ranks keep their old
 * measurements. Collective. */
banyan_status autotune_take(banyan_mixed *mixed, const banyan_mixed_timing *timings, size_t count);

/* Choose again among the measurements, after the set of valid modes has changed. */
void autotune_choose(banyan_mixed *mixed);

void autotune_free(banyan_mixed *mixed);

#endif
