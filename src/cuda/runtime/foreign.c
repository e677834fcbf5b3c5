#include "cuda/runtime/foreign.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/module.h"
#include "cuda/driver.h"
#include "cuda/runtime/watch.h"

#define PERIOD_NS 10000000

/* Freed by the last thread that needs it. */
typedef struct foreign_call {
    int device;
    foreign_function call;
    void *argument;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    enum { HELD, SENT, DROPPED } gate;
    bool done, abandoned;
    banyan_status status; /* of the call, or of entering the device */
    char reason[256];
} foreign_call;

static void call_free(foreign_call *old)
{
    pthread_cond_destroy(&old->changed);
    pthread_mutex_destroy(&old->lock);
    free(old);
}

static void *call_main(void *given)
{
    foreign_call *made = given;
    pthread_mutex_lock(&made->lock);
    while (made->gate == HELD)
        pthread_cond_wait(&made->changed, &made->lock);
    bool dropped = made->gate == DROPPED;
    pthread_mutex_unlock(&made->lock);
    banyan_status status = dropped ? BANYAN_OK : driver_enter(made->device);
    if (!dropped && status == BANYAN_OK) {
        status = made->call(made->argument);
        driver_leave();
    }
    pthread_mutex_lock(&made->lock);
    made->done = true;
    made->status = status;
    if (status != BANYAN_OK)
        snprintf(made->reason, sizeof made->reason, "%s", banyan_last_error());
    bool abandoned = made->abandoned;
    pthread_cond_broadcast(&made->changed);
    pthread_mutex_unlock(&made->lock);
    if (abandoned)
        call_free(made);
    return NULL;
}

/* Called with the lock, which is released while the worlds are checked. `together`: a world that
 * ends when the call fails at one of its ranks; or NULL. */
static banyan_status wait_until_done(foreign_call *made, banyan_world *world,
                                     banyan_world *together, const char *name)
{
    module_wait wait = banyan_module_wait_begin(world);
    banyan_status status = BANYAN_OK;
    char text[160];
    snprintf(text, sizeof text, "for %.60s to end, which does not say for which rank it waits",
             name);
    while (!made->done && status == BANYAN_OK) {
        module_cond_nap(&made->changed, &made->lock, PERIOD_NS);
        if (made->done)
            break;
        pthread_mutex_unlock(&made->lock);
        status = together ? banyan_world_check(together) : BANYAN_OK;
        if (status == BANYAN_OK)
            status = banyan_module_wait_on(&wait, -1, text);
        pthread_mutex_lock(&made->lock);
    }
    banyan_module_wait_end(&wait);
    if (status != BANYAN_OK)
        return status;
    return made->status == BANYAN_OK ? BANYAN_OK
                                     : banyan_error_set(made->status, "%s", made->reason);
}

/* The call's thread waits at the gate. */
static banyan_status foreign_begin(int device, const char *name, foreign_function call,
                                   void *argument, foreign_call **begun)
{
    foreign_call *made = calloc(1, sizeof *made);
    if (!made)
        return banyan_error_set(BANYAN_ERR_NO_MEMORY, "cuda: out of memory for a thread");
    made->device = device;
    made->call = call;
    made->argument = argument;
    pthread_mutex_init(&made->lock, NULL);
    module_cond_init(&made->changed);
    pthread_t thread;
    banyan_status status = module_thread_start(&thread, call_main, made, name);
    if (status != BANYAN_OK) {
        call_free(made);
        return status;
    }
    pthread_detach(thread);
    *begun = made;
    return BANYAN_OK;
}

/* Called with the lock. */
static void open_gate(foreign_call *made, bool sent)
{
    made->gate = sent ? SENT : DROPPED;
    pthread_cond_broadcast(&made->changed);
}

static void foreign_drop(foreign_call *made)
{
    pthread_mutex_lock(&made->lock);
    open_gate(made, false);
    while (!made->done)
        pthread_cond_wait(&made->changed, &made->lock);
    pthread_mutex_unlock(&made->lock);
    call_free(made);
}

static banyan_status foreign_send(foreign_call *made, banyan_world *world, banyan_world *together,
                                  const char *name, foreign_end *end)
{
    pthread_mutex_lock(&made->lock);
    open_gate(made, true);
    banyan_status status = wait_until_done(made, world, together, name);
    bool done = made->done;
    made->abandoned = !done;
    pthread_mutex_unlock(&made->lock);
    *end = done ? FOREIGN_CALLED : FOREIGN_LEFT;
    if (done)
        call_free(made);
    return status;
}

banyan_status foreign_run(banyan_world *world, int device, const char *name, foreign_function call,
                          void *argument, foreign_end *end)
{
    foreign_call *made;
    *end = FOREIGN_NOT_CALLED;
    RETURN_IF_FAILED(foreign_begin(device, name, call, argument, &made));
    return foreign_send(made, world, NULL, name, end);
}

static banyan_status list_all(const banyan_world *world, int **ranks)
{
    int count = banyan_world_size(world);
    int *made = calloc((size_t)count, sizeof *made);
    if (!made)
        return banyan_error_set(BANYAN_ERR_NO_MEMORY, "cuda: out of memory: %d ranks", count);
    for (int rank = 0; rank < count; rank++)
        made[rank] = rank;
    *ranks = made;
    return BANYAN_OK;
}

/* Splits are numbered: all ranks split, or none. */
banyan_status foreign_split(banyan_world *world, banyan_world **all)
{
    int *ranks = NULL;
    banyan_status status = banyan_module_agree(world, list_all(world, &ranks));
    if (status == BANYAN_OK)
        status = banyan_module_agree(
            world, banyan_world_split(world, ranks, banyan_world_size(world), all));
    free(ranks);
    return status;
}

/* End the wait of the other ranks for a call that failed here first. A rank that only stopped
 * waiting has no failure of its own. */
static banyan_status own_failure(banyan_world *world, banyan_world *all, banyan_status status)
{
    if (status == BANYAN_OK || banyan_world_check(world) != BANYAN_OK)
        return status;
    if (banyan_world_check(all) != BANYAN_OK)
        return BANYAN_OK;
    error_kept kept = error_keep(status);
    (void)banyan_world_abort(all, kept.message);
    return error_again(&kept);
}

banyan_status foreign_run_together(banyan_world *world, int device, const char *name,
                                   foreign_function call, void *argument, foreign_end *end)
{
    foreign_call *made = NULL;
    banyan_world *all = NULL;
    *end = FOREIGN_NOT_CALLED;
    RETURN_IF_FAILED(foreign_split(world, &all));
    banyan_status status =
        banyan_module_agree(world, foreign_begin(device, name, call, argument, &made));
    if (status == BANYAN_OK)
        status = banyan_module_agree(
            world, own_failure(world, all, foreign_send(made, world, all, name, end)));
    else if (made)
        foreign_drop(made);
    error_kept kept = error_keep(status);
    (void)banyan_world_close(all);
    return error_again(&kept);
}
