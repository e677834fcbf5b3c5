#include "publish/parallel.h"

#include <sched.h>
#include <stdatomic.h>

#include "core/threads/thread.h"

/* Fewer items are not worth another thread. */
#define ITEMS_LEAST 4

struct shared_work {
    parallel_work work;
    void *context;
    size_t count;
    _Atomic size_t next;
    _Atomic int workers;
};

static banyan_status parallel_take(void *argument)
{
    struct shared_work *shared = argument;
    int worker = atomic_fetch_add(&shared->workers, 1);
    for (size_t i; (i = atomic_fetch_add(&shared->next, 1)) < shared->count;)
        shared->work(shared->context, worker, i);
    return BANYAN_OK;
}

static size_t parallel_threads(size_t count)
{
    cpu_set_t mine;
    size_t processors =
        sched_getaffinity(0, sizeof mine, &mine) == 0 ? (size_t)CPU_COUNT(&mine) : 1;
    size_t threads = processors < 8 ? (processors > 1 ? 2 : 1) : processors / 4;
    if (threads > PARALLEL_WORKERS)
        threads = PARALLEL_WORKERS;
    return threads < count / ITEMS_LEAST ? threads : count / ITEMS_LEAST;
}

void parallel_run(size_t count, parallel_work work, void *context)
{
    struct shared_work shared = {.work = work, .context = context, .count = count};
    banyan_request *others[PARALLEL_WORKERS];
    size_t started = 0, threads = parallel_threads(count);
    while (started + 1 < threads &&
           request_start(parallel_take, &shared, &others[started]) == BANYAN_OK)
        started++;
    parallel_take(&shared);
    for (size_t i = 0; i < started; i++)
        (void)banyan_request_wait(others[i]);
}
