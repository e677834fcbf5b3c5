#include "memory/bell.h"

#include <sched.h>

bool bell_is_crowded(int threads)
{
    cpu_set_t cores;
    if (sched_getaffinity(0, sizeof cores, &cores) != 0)
        return false; /* a machine of more than 1,024 processors */
    return threads > CPU_COUNT(&cores);
}
