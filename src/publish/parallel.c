#include "publish/parallel.h"

#include <sched.h>
#include <stdatomic.h>

#include "core/threads/thread.h"

#define THREADS_MOST 4
/* Fewer items are not worth another thread. */
#define ITEMS_LEAST 4

struct shared_work {
    void (*work)(void *context, size_t i);
    void *context;
    size_t count;
    _Atomic size_t next;
};

static banyan_status parallel_take(void *argument)
{
    struct shared_work *shared = argument;
    for (size_t i; (i = atomic_fetch_add(&shared->next, 1)) < shared->count;)
        shared->work(shared->context, i);
    return BANYAN_OK;
}

static size_t parallel_threads(size_t count)
{
    cpu_set_t mine;
    size_t processors =
        sched_getaffinity(0, sizeof mine, &mine) == 0 ? (size_t)CPU_COUNT(&mine) : 1;
    size_t threads = processors < 8 ? (processors > 1 ? 2 : 1) : processors / 4;
    if (threads > THREADS_MOST)
        threads = THREADS_MOST;
    return threads < count / ITEMS_LEAST ? threads : count / ITEMS_LEAST;
}

void parallel_run(size_t count, void (*work)(void *context, size_t i), void *context)
{
    struct shared_work shared = {.work = work, .context = context, .count = count};
    banyan_request *others[THREADS_MOST];
    size_t started = 0, threads = parallel_threads(count);
    while (started + 1 < threads &&
           request_start(parallel_take, &shared, &others[started]) == BANYAN_OK)
        started++;
    parallel_take(&shared);
    for (size_t i = 0; i < started; i++)
        (void)banyan_request_wait(others[i]);
}
