#include "cuda/copy/watch.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>

#define PERIOD_NS 10000000

struct copy_watch {
    bool (*look)(void *context);
    void *context;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t ended;
    bool ends;
};

static void *watch_main(void *argument)
{
    copy_watch *watch = argument;
    bool well = true;
    pthread_mutex_lock(&watch->lock);
    while (!watch->ends && well) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += PERIOD_NS;
        if (until.tv_nsec >= 1000000000) {
            until.tv_sec++;
            until.tv_nsec -= 1000000000;
        }
        pthread_cond_timedwait(&watch->ended, &watch->lock, &until);
        pthread_mutex_unlock(&watch->lock);
        well = watch->look(watch->context);
        pthread_mutex_lock(&watch->lock);
    }
    pthread_mutex_unlock(&watch->lock);
    return NULL;
}

/* Signals are the program's own threads' to take. */
static int start_thread(copy_watch *watch)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int result = pthread_create(&watch->thread, NULL, watch_main, watch);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return result;
}

banyan_status copy_watch_start(bool (*look)(void *context), void *context, copy_watch **watch)
{
    copy_watch *made = calloc(1, sizeof *made);
    if (!made)
        return banyan_error_set(BANYAN_ERR_NO_MEMORY, "cuda: out of memory for a thread");
    made->look = look;
    made->context = context;
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&made->lock, NULL);
    pthread_cond_init(&made->ended, &attributes);
    pthread_condattr_destroy(&attributes);
    if (start_thread(made) != 0) {
        free(made);
        return banyan_error_set(BANYAN_ERR_SYSTEM, "cuda: no thread that watches the world");
    }
    *watch = made;
    return BANYAN_OK;
}

void copy_watch_end(copy_watch *watch)
{
    if (!watch)
        return;
    pthread_mutex_lock(&watch->lock);
    watch->ends = true;
    pthread_cond_signal(&watch->ended);
    pthread_mutex_unlock(&watch->lock);
    pthread_join(watch->thread, NULL);
    pthread_cond_destroy(&watch->ended);
    pthread_mutex_destroy(&watch->lock);
    free(watch);
}
