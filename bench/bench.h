/* Functions of benchmarks that call the library alone. */
#ifndef BENCH_BENCH_H
#define BENCH_BENCH_H

#include <errno.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include <banyan/banyan.h>

/* A failed benchmark has no result. */
static inline void need(banyan_status status)
{
    if (status == BANYAN_OK)
        return;
    fprintf(stderr, "%s: %s\n", program_invocation_short_name, banyan_last_error());
    _exit(1);
}

static inline double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

#endif
