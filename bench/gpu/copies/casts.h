/* Formats changed on the way from GPU to GPU, in the pass that moves the elements. */
#ifndef BENCH_CASTS_H
#define BENCH_CASTS_H

#include <stdio.h>

#include "common/hardware.h"

/* Print a line per case, with an object in `json`. False when received data differs from this
 * rank's own conversion of equal elements. Collective. */
bool casts_measure(const gpu *on, const limits *limit, FILE *json, bool *follows);

#endif
