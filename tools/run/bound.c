#include "run/bound.h"

#include <sched.h>

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
