/* The cost of GPU memory: making symmetric buffers, and receiving into memory of other origins,
 * which is mapped at the sender's or staged. */
#ifndef BENCH_MEMORY_H
#define BENCH_MEMORY_H

#include <stdio.h>

#include "common/gpu.h"

/* Measure the first use of everything in a process that began at `begin` (gpu_now_ms); call it
 * before anything else. Collective. */
void memory_measure_first(const gpu *on, double begin);

/* Print a line per buffer size and origin of memory, with an object in `json`. False when bytes
 * came out wrong. Collective. */
bool memory_measure(const gpu *on, FILE *json, bool *follows);

#endif
