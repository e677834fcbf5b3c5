#include "memory/bell.h"

#include <sched.h>

#define SPINS_WITH_OWN_CORE 2000
#define SPINS_SHARED 20

uint32_t bell_spins(int threads)
{
    cpu_set_t cores;
    if (sched_getaffinity(0, sizeof cores, &cores) != 0)
        return SPINS_SHARED; /* more than 1,024 processors are not worth a larger mask */
    return threads <= CPU_COUNT(&cores) ? SPINS_WITH_OWN_CORE : SPINS_SHARED;
}
