/* As many tensors as a large model has, and as large, all at once. */
#ifndef BENCH_COPIES_MODEL_H
#define BENCH_COPIES_MODEL_H

#include <stdio.h>

#include "gpu.h"

/* 30,000 tensors of 4 KiB to 256 MiB from each rank, 10 GiB, to all others; moved back once, to be
 * compared. A line, and an object into `json` (NULL: none). Collective. */
bool copies_measure_model(const gpu *on, const char *backend, double engine_gbs, FILE *json,
                          bool *follows);

#endif
