/* The fixed cost of running a plan, beside the work of the plan. */
#ifndef BENCH_FIXED_H
#define BENCH_FIXED_H

#include <stdio.h>

#include "common/gpu.h"

/* Measure plans of 1, 16 and 64 thread blocks that do nothing, and one in which every rank signals
 * all others and waits for them; print a line each. Collective. */
void fixed_measure(const gpu *on);

#endif
