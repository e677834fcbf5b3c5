#include "cuda/watch.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "cuda/thread.h"

#define PERIOD_NS 10000000

struct watch {
    bool (*look)(void *context);
    void *context;
    banyan_world *world; /* of watch_world, which is its own context */
    uint32_t *stop;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t ended;
    bool ends;
};

static void *watch_main(void *argument)
{
    watch *of = argument;
    bool well = true;
    pthread_mutex_lock(&of->lock);
    while (!of->ends && well) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += PERIOD_NS;
        if (until.tv_nsec >= 1000000000) {
            until.tv_sec++;
            until.tv_nsec -= 1000000000;
        }
        pthread_cond_timedwait(&of->ended, &of->lock, &until);
        pthread_mutex_unlock(&of->lock);
        well = of->look(of->context);
        pthread_mutex_lock(&of->lock);
    }
    pthread_mutex_unlock(&of->lock);
    return NULL;
}

static banyan_status make(bool (*look)(void *context), void *context, watch **made)
{
    watch *of = calloc(1, sizeof *of);
    if (!of)
        return banyan_error_set(BANYAN_ERR_NO_MEMORY, "cuda: out of memory for a thread");
    of->look = look;
    of->context = context;
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&of->lock, NULL);
    pthread_cond_init(&of->ended, &attributes);
    pthread_condattr_destroy(&attributes);
    *made = of;
    return BANYAN_OK;
}

static banyan_status start(watch *of, watch **started)
{
    banyan_status status = module_thread_start(&of->thread, watch_main, of, "watching the world");
    if (status != BANYAN_OK) {
        free(of);
        return status;
    }
    *started = of;
    return BANYAN_OK;
}

banyan_status watch_start(bool (*look)(void *context), void *context, watch **started)
{
    watch *of;
    banyan_status status = make(look, context, &of);
    return status == BANYAN_OK ? start(of, started) : status;
}

static bool look_at_world(void *argument)
{
    const watch *of = argument;
    if (banyan_world_check(of->world) == BANYAN_OK)
        return true;
    __atomic_store_n(of->stop, 1, __ATOMIC_RELEASE);
    return false;
}

banyan_status watch_world(banyan_world *world, uint32_t *stop, watch **started)
{
    watch *of;
    banyan_status status = make(look_at_world, NULL, &of);
    if (status != BANYAN_OK)
        return status;
    of->context = of;
    of->world = world;
    of->stop = stop;
    return start(of, started);
}

void watch_end(watch *of)
{
    if (!of)
        return;
    pthread_mutex_lock(&of->lock);
    of->ends = true;
    pthread_cond_signal(&of->ended);
    pthread_mutex_unlock(&of->lock);
    pthread_join(of->thread, NULL);
    pthread_cond_destroy(&of->ended);
    pthread_mutex_destroy(&of->lock);
    free(of);
}
