/* The ways of the copy service from GPU to GPU. */
#ifndef BENCH_WAYS_H
#define BENCH_WAYS_H

#include "common/gpu.h"

typedef struct copy_way {
    const char *name; /* a backend's name, optionally with a slash and its transport's */
    const char *backend, *transport;
} copy_way;

#define COPY_WAYS 4
extern const copy_way copy_ways[COPY_WAYS];

/* False, after rank 0 prints why, where there is no such way. Collective. */
bool copy_way_open(const gpu *on, const copy_way *way, banyan_copy_service **service);

#endif
