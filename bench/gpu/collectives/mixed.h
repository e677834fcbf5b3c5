/* Mixed collectives of a tensor-parallel by data-parallel grid, beside NCCL's two collectives. */
#ifndef BENCH_MIXED_H
#define BENCH_MIXED_H

#include <stdio.h>

#include "common/hardware.h"

/* Measure on 4 GPUs tp = 2 × dp = 2, on 2 tp = 2; rows of 8192 bf16. Print a line per operation and
 * number of rows, with every mode, the links' lower bound and the goal; into `json`, if not NULL,
 * an object each, separated by commas. False when bytes came out wrong. Collective. */
bool mixed_measure(const gpu *on, const limits *limit, FILE *json);

#endif
