/* A whole model from one sharding to another, on the same GPUs, through each copy backend. */
#ifndef BENCH_RESHARDS_H
#define BENCH_RESHARDS_H

#include <stdio.h>

#include "common/gpu.h"

/* Reshard Llama-3.1-8B in bf16 from tensor parallelism over all ranks to tensor parallelism over
 * half of them, twice. Print a line, and an object into `json` (NULL: none), per backend. False
 * when the results of two backends differ. Collective; an even number of ranks. */
bool reshards_measure(const gpu *on, FILE *json);

#endif
