/* Thirty thousand transfers a rank in one run, of 4 KiB to 256 MiB, 10 GiB a rank. */
#ifndef BENCH_MANY_H
#define BENCH_MANY_H

#include <stdio.h>

#include "common/hardware.h"
#include "copies/ways.h"

/* Print a line per way, with an object in `json`; `wanted`: NULL, or the only way. False when an
 * element came out wrong. A run that takes too long ends the program. Collective. */
bool many_measure(const gpu *on, const limits *limit, const char *wanted, FILE *json,
                  bool *follows);

#endif
