#include "publish/background.h"

#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/deadline.h"
#include "world/control.h"

#define NICE 10

banyan_status background_world_open(banyan_world *world, banyan_world **threads)
{
    int count = banyan_world_size(world);
    size_t bytes = (size_t)count * sizeof(int);
    int *ranks = malloc(bytes);
    for (int i = 0; ranks && i < count; i++)
        ranks[i] = i;
    banyan_status status =
        control_agree(world, ranks ? BANYAN_OK : error_no_memory(bytes, "a list of all ranks"));
    if (status == BANYAN_OK)
        status = control_agree(world, banyan_world_split(world, ranks, count, threads));
    free(ranks);
    return status;
}

void background_lower_priority(void)
{
    setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), NICE);
}

void background_wait(pthread_cond_t *changed, pthread_mutex_t *lock, uint64_t until_ns)
{
    struct timespec until = {(time_t)(until_ns / NS_PER_S), (long)(until_ns % NS_PER_S)};
    pthread_cond_clockwait(changed, lock, CLOCK_MONOTONIC, &until);
}
