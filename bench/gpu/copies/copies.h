/* The elements of resharding between GPUs: boxes moved by the copy service, beside copy engines. */
#ifndef BENCH_COPIES_H
#define BENCH_COPIES_H

#include <stdio.h>

#include "common/hardware.h"
#include "copies/ways.h"

/* Print a line per case and way; into `json`, if not NULL, an object each, separated by commas.
 * `wanted`: NULL, or the only way. False when bytes came out wrong. Collective. */
bool copies_measure(const gpu *on, const limits *limit, const char *wanted, FILE *json,
                    bool *follows);

#endif
