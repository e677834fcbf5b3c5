/* The best figures of the hardware, measured beside everything else. */
#ifndef BENCH_HARDWARE_H
#define BENCH_HARDWARE_H

#include "common/gpu.h"

typedef struct limits {
    double one_way_gbs, both_ways_gbs; /* copy engine, each way, to the next rank's GPU */
    double local_gbs;                  /* read + written */
    double empty_us;                   /* an empty kernel in a graph */
} limits;

/* Collective. */
void limits_measure(const gpu *on, limits *found);

#endif
