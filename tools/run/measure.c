#include "run/measure.h"

#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "cli/clock.h"

banyan_status measure_durations(banyan_world *world, const interval *mine, size_t count,
                                double *seconds)
{
    int ranks = banyan_world_size(world);
    interval *all = calloc(count * (size_t)ranks, sizeof *all);
    if (!all)
        return banyan_error_set(BANYAN_ERR_NO_MEMORY, "out of memory: %zu times of %d ranks", count,
                                ranks);
    banyan_status status = banyan_world_allgather(world, mine, count * sizeof *mine, all);
    for (size_t i = 0; i < count && status == BANYAN_OK; i++) {
        double began = INFINITY, ended = -INFINITY;
        for (int rank = 0; rank < ranks; rank++) {
            const interval *its = &all[(size_t)rank * count + i];
            began = fmin(began, its->began);
            ended = fmax(ended, its->ended);
        }
        seconds[i] = ended - began;
    }
    free(all);
    return status;
}

bool bound_leaves_room(int ranks)
{
    cpu_set_t all;
    return sched_getaffinity(0, sizeof all, &all) == 0 && CPU_COUNT(&all) / 2 >= ranks;
}

void bound_to_processor(int rank, int ranks)
{
    cpu_set_t all, one;
    int left = rank;
    if (sched_getaffinity(0, sizeof all, &all) != 0 || CPU_COUNT(&all) < ranks)
        return;
    CPU_ZERO(&one);
    for (int i = 0; i < CPU_SETSIZE; i++) {
        if (CPU_ISSET(i, &all) && left-- == 0)
            CPU_SET(i, &one);
    }
    sched_setaffinity(0, sizeof one, &one);
}

#define ROUNDS 5

static banyan_status measure_rounds(banyan_world *world, char *to, const char *from, size_t bytes,
                                    double *best_s)
{
    for (int round = 0; round < ROUNDS; round++) {
        interval mine;
        double seconds;
        banyan_status status = banyan_world_barrier(world);
        if (status != BANYAN_OK)
            return status;
        mine.began = clock_now_s();
        memcpy(to, from, bytes);
        mine.ended = clock_now_s();
        status = measure_durations(world, &mine, 1, &seconds);
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
