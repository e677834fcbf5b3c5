#include "cuda/runtime/watch.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PERIOD_NS 10000000
/* Periods until the world should know of a loss: its own silence ends after some seconds. */
#define LOSS_TRIES 800
/* Warps report every 256 ms that they wait. */
#define BEAT_NS UINT64_C(600000000)

struct watch {
    bool (*look)(void *context);
    void *context;
    watch_words words; /* of watch_world, as its own context */
    watch_beat beat;
    module_wait wait;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t ended;
    bool ends;
};

banyan_status module_thread_start(pthread_t *thread, void *(*run)(void *), void *argument,
                                  const char *what)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(thread, NULL, run, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failed ? banyan_error_set(BANYAN_ERR_SYSTEM, "cuda: no thread for %s: %s", what,
                                     strerror(failed))
                  : BANYAN_OK;
}

bool module_network_is_direct(void)
{
    const char *path = getenv("BANYAN_GPU_NETWORK");
    return path && strcmp(path, "direct") == 0;
}

bool module_world_holds(banyan_world *world, banyan_status status)
{
    if (status == BANYAN_OK)
        return true;
    error_kept kept = error_keep(status);
    for (int i = 0; i < LOSS_TRIES && status == BANYAN_ERR_PEER_LOST; i++) {
        if (banyan_world_check(world) != BANYAN_OK)
            return false;
        nanosleep(&(struct timespec){.tv_nsec = PERIOD_NS}, NULL);
    }
    if (banyan_world_check(world) == BANYAN_OK)
        (void)banyan_world_abort(world, kept.message);
    return false;
}

uint64_t module_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

void module_cond_init(pthread_cond_t *cond)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &attributes);
    pthread_condattr_destroy(&attributes);
}

void module_cond_nap(pthread_cond_t *cond, pthread_mutex_t *lock, long nap_ns)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += nap_ns;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    pthread_cond_timedwait(cond, lock, &until);
}

static void *watch_main(void *argument)
{
    watch *of = argument;
    bool well = true;
    pthread_mutex_lock(&of->lock);
    while (!of->ends && well) {
        module_cond_nap(&of->ended, &of->lock, PERIOD_NS);
        pthread_mutex_unlock(&of->lock);
        well = of->look(of->context);
        pthread_mutex_lock(&of->lock);
    }
    pthread_mutex_unlock(&of->lock);
    return NULL;
}

static banyan_status watch_make(bool (*look)(void *context), void *context, watch **made)
{
    watch *of = calloc(1, sizeof *of);
    if (!of)
        return banyan_error_set(BANYAN_ERR_NO_MEMORY, "cuda: out of memory for a thread");
    of->look = look;
    of->context = context;
    pthread_mutex_init(&of->lock, NULL);
    module_cond_init(&of->ended);
    *made = of;
    return BANYAN_OK;
}

static banyan_status watch_start_thread(watch *of, watch **started)
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
    watch *of = NULL;
    RETURN_IF_FAILED(watch_make(look, context, &of));
    return watch_start_thread(of, started);
}

bool watch_beat_lasts(watch_beat *beat, const report_words *reports, device_report *wait)
{
    uint64_t now = module_now_ns();
    *wait = (device_report){.waited_ns =
                                __atomic_load_n(&reports->lasting.waited_ns, __ATOMIC_RELAXED)};
    for (int i = 0; i < 3; i++)
        wait->what[i] = __atomic_load_n(&reports->lasting.what[i], __ATOMIC_RELAXED);
    if (wait->waited_ns != beat->waited_ns) {
        beat->waited_ns = wait->waited_ns;
        beat->changed_ns = now;
    }
    wait->waited_ns += now - beat->changed_ns;
    return beat->changed_ns != 0 && now - beat->changed_ns < BEAT_NS;
}

static void watch_look_at_waits(watch *of)
{
    device_report wait;
    char text[160];
    bool lasts = watch_beat_lasts(&of->beat, of->words.reports, &wait);
    int rank = device_report_rank(&wait);
    if (lasts && rank >= 0 && rank < banyan_world_size(of->words.world)) {
        of->words.describe(&wait, text, sizeof text);
        banyan_module_device_waits(&of->wait, rank, wait.waited_ns, text);
    } else if (!report_has_failed(of->words.reports)) {
        banyan_module_device_waits(&of->wait, -1, 0, NULL);
    }
}

static bool look_at_world(void *argument)
{
    watch *of = argument;
    if (banyan_world_check(of->words.world) == BANYAN_OK) {
        watch_look_at_waits(of);
        return true;
    }
    report_stop(of->words.reports);
    return false;
}

banyan_status watch_world(const watch_words *words, watch **started)
{
    watch *of = NULL;
    RETURN_IF_FAILED(watch_make(look_at_world, NULL, &of));
    of->context = of;
    of->words = *words;
    of->wait = banyan_module_wait_begin(words->world);
    return watch_start_thread(of, started);
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
    if (of->wait.world)
        banyan_module_device_waits(&of->wait, -1, 0, NULL);
    pthread_cond_destroy(&of->ended);
    pthread_mutex_destroy(&of->lock);
    free(of);
}
