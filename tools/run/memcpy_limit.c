#include "run/memcpy_limit.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "cli/clock.h"
#include "run/span.h"

#define ROUNDS 5

static banyan_status measure_rounds(banyan_world *world, char *to, const char *from, size_t bytes,
                                    double *best_s)
{
    for (int round = 0; round < ROUNDS; round++) {
        span mine;
        double seconds;
        banyan_status status = banyan_world_barrier(world);
        if (status != BANYAN_OK)
            return status;
        mine.began = clock_now_s();
        memcpy(to, from, bytes);
        mine.ended = clock_now_s();
        status = span_of_all(world, &mine, 1, &seconds);
        if (status != BANYAN_OK)
            return status;
        if (round == 0 || seconds < *best_s)
            *best_s = seconds;
    }
    return BANYAN_OK;
}

banyan_status memcpy_limit_measure(banyan_world *world, size_t bytes, double *bytes_per_s)
{
    char *buffers =
        mmap(NULL, 2 * bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (buffers == MAP_FAILED)
        return banyan_error_set(BANYAN_ERR_NO_MEMORY,
                                "out of memory: %zu bytes to measure memcpy with", 2 * bytes);
    madvise(buffers, 2 * bytes, MADV_HUGEPAGE);
    memset(buffers, 1, 2 * bytes);
    double best_s = 0;
    banyan_status status = measure_rounds(world, buffers, buffers + bytes, bytes, &best_s);
    munmap(buffers, 2 * bytes);
    if (status == BANYAN_OK)
        *bytes_per_s = (double)bytes * banyan_world_size(world) / best_s;
    return status;
}
