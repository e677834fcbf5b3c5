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
    banyan_world *world;
    bool (*is_idle)(void *context); /* of idle_context */
    void *idle_context;
    bool sleeps; /* until woken */
    watched *first;
    watched ranks; /* of watch_ranks, with the next two */
    watch_describe describe;
    module_wait wait;
    pthread_t thread;
    pthread_mutex_t lock; /* held but for naps */
    pthread_cond_t changed;
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
    pthread_mutex_lock(&of->lock);
    if (!of->ends)
        module_cond_nap(&of->changed, &of->lock, PERIOD_NS);
    while (!of->ends && of->look(of->context)) {
        if (of->sleeps)
            pthread_cond_wait(&of->changed, &of->lock);
        else
            module_cond_nap(&of->changed, &of->lock, PERIOD_NS);
    }
    pthread_mutex_unlock(&of->lock);
    return NULL;
}

static banyan_status watch_make(watch **made)
{
    watch *of = calloc(1, sizeof *of);
    if (!of)
        return banyan_error_set(BANYAN_ERR_NO_MEMORY, "cuda: out of memory for a thread");
    pthread_mutex_init(&of->lock, NULL);
    module_cond_init(&of->changed);
    *made = of;
    return BANYAN_OK;
}

static banyan_status watch_begin(watch *of, bool (*look)(void *context), void *context,
                                 watch **started)
{
    of->look = look;
    of->context = context;
    banyan_status status = module_thread_start(&of->thread, watch_main, of, "watching the world");
    if (status == BANYAN_OK)
        *started = of;
    else
        free(of);
    return status;
}

banyan_status watch_start(bool (*look)(void *context), void *context, watch **started)
{
    watch *of = NULL;
    RETURN_IF_FAILED(watch_make(&of));
    return watch_begin(of, look, context, started);
}

/* True if the reported wait still lasts; then it is returned. */
static bool watch_reads(watched *one, device_report *wait)
{
    const device_report *reported = &one->reports->lasting;
    uint64_t now = module_now_ns();
    *wait = (device_report){.waited_ns = __atomic_load_n(&reported->waited_ns, __ATOMIC_RELAXED)};
    for (int i = 0; i < 3; i++)
        wait->what[i] = __atomic_load_n(&reported->what[i], __ATOMIC_RELAXED);
    if (wait->waited_ns != one->waited_ns) {
        one->waited_ns = wait->waited_ns;
        one->changed_ns = now;
    }
    wait->waited_ns += now - one->changed_ns;
    return one->changed_ns != 0 && now - one->changed_ns < BEAT_NS;
}

/* Stop kernels first: the driver's calls in `is_idle` may wait for them. */
static bool watch_look(void *argument)
{
    watch *of = argument;
    device_report wait;
    if (banyan_world_check(of->world) != BANYAN_OK) {
        for (const watched *one = of->first; one; one = one->next)
            report_stop(one->reports);
    }
    of->sleeps = of->is_idle && of->is_idle(of->idle_context);
    for (watched *one = of->first; one; one = one->next) {
        if (watch_reads(one, &wait) && !of->sleeps)
            one->lasts(one->context, &wait);
        else if (!report_has_failed(one->reports))
            one->lasts(one->context, NULL);
    }
    return true;
}

banyan_status watch_world(banyan_world *world, bool (*is_idle)(void *context), void *context,
                          watch **started)
{
    watch *of = NULL;
    RETURN_IF_FAILED(watch_make(&of));
    of->world = world;
    of->is_idle = is_idle;
    of->idle_context = context;
    return watch_begin(of, watch_look, of, started);
}

void watch_add(watch *of, watched *added)
{
    pthread_mutex_lock(&of->lock);
    added->next = of->first;
    of->first = added;
    pthread_mutex_unlock(&of->lock);
}

void watch_remove(watch *of, const watched *removed)
{
    pthread_mutex_lock(&of->lock);
    watched **at = &of->first;
    while (*at && *at != removed)
        at = &(*at)->next;
    if (*at)
        *at = removed->next;
    pthread_mutex_unlock(&of->lock);
}

void watch_wake(watch *of)
{
    pthread_mutex_lock(&of->lock);
    pthread_cond_signal(&of->changed);
    pthread_mutex_unlock(&of->lock);
}

static void watch_rank_lasts(void *argument, const device_report *wait)
{
    watch *of = argument;
    char text[160];
    int rank = wait ? device_report_rank(wait) : -1;
    if (rank >= banyan_world_size(of->world))
        rank = -1;
    if (rank >= 0)
        of->describe(wait, text, sizeof text);
    banyan_module_device_waits(&of->wait, rank, rank >= 0 ? wait->waited_ns : 0, text);
}

banyan_status watch_ranks(banyan_world *world, report_words *reports, watch_describe describe,
                          watch **started)
{
    watch *of = NULL;
    RETURN_IF_FAILED(watch_make(&of));
    of->world = world;
    of->ranks = (watched){.reports = reports, .lasts = watch_rank_lasts, .context = of};
    of->first = &of->ranks;
    of->describe = describe;
    of->wait = banyan_module_wait_begin(world);
    return watch_begin(of, watch_look, of, started);
}

void watch_end(watch *of)
{
    if (!of)
        return;
    pthread_mutex_lock(&of->lock);
    of->ends = true;
    pthread_cond_signal(&of->changed);
    pthread_mutex_unlock(&of->lock);
    pthread_join(of->thread, NULL);
    if (of->describe)
        banyan_module_device_waits(&of->wait, -1, 0, NULL);
    pthread_cond_destroy(&of->changed);
    pthread_mutex_destroy(&of->lock);
    free(of);
}
