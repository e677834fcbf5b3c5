/* The kernels that move and convert elements, within one GPU, beside its local memory. */
#ifndef BENCH_KERNELS_H
#define BENCH_KERNELS_H

#include <stdio.h>

#include "common/hardware.h"

/* Print a line per case, with an object in `json`. Every rank sends to itself. False when a result
 * differs from another way to the same data. Collective. */
bool kernels_measure(const gpu *on, const limits *limit, FILE *json, bool *follows);

#endif
