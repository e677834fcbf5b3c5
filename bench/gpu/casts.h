/* Formats changed on the way from GPU to GPU, in the pass that moves the elements. */
#ifndef BENCH_CASTS_H
#define BENCH_CASTS_H

#include <stdio.h>

#include "hardware.h"

/* A line a case, an object in `json`. False when what a rank receives is not what it makes of the
 * same elements itself. Collective. */
bool casts_measure(const gpu *on, const limits *limit, FILE *json, bool *follows);

#endif
