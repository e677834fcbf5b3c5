#include "execute/host/workers.h"

#include <stdlib.h>

#include "core/error.h"
#include "core/threads/thread.h"
#include "memory/staging/wake_up.h"

struct worker_pool;

struct pool_worker {
    struct worker_pool *all;
    int index;
    pthread_t thread;
};

struct worker_pool {
    int count, started;
    uint32_t spins;
    struct pool_worker *members; /* from index 1 on */
    void (*work)(void *context, int worker);
    void *context;
    wake_up begin, end;
    _Alignas(64) _Atomic uint32_t generation; /* increases with each work item */
    _Atomic bool leaving;
    _Alignas(64) _Atomic int busy;
};

/* Spin long enough that the next of closely following runs finds all workers awake. */
static void wait_while_equal(_Atomic uint32_t *word, uint32_t value, wake_up *rung, uint32_t spins)
{
    for (uint32_t i = 0; i < spins; i++) {
        if (atomic_load_explicit(word, memory_order_acquire) != value)
            return;
        spin_pause();
    }
    for (;;) {
        uint32_t seen = wake_up_read(rung);
        if (atomic_load_explicit(word, memory_order_acquire) != value)
            return;
        wake_up_sleep(rung, seen, WAKE_UP_NAP_NS);
    }
}

static void *member_main(void *argument)
{
    struct pool_worker *self = argument;
    struct worker_pool *all = self->all;
    for (uint32_t generation = 0;; generation++) {
        wait_while_equal(&all->generation, generation, &all->begin, all->spins);
        if (atomic_load(&all->leaving))
            return NULL;
        all->work(all->context, self->index);
        if (atomic_fetch_sub_explicit(&all->busy, 1, memory_order_acq_rel) == 1)
            wake_up_notify(&all->end);
    }
}

static void workers_begin(worker_pool *all)
{
    atomic_fetch_add_explicit(&all->generation, 1, memory_order_release);
    wake_up_notify(&all->begin);
}

banyan_status workers_create(int count, bool crowded, worker_pool **made)
{
    worker_pool *all = aligned_alloc(_Alignof(worker_pool), sizeof *all);
    if (!all)
        return error_no_memory(sizeof *all, "worker threads");
    *all = (worker_pool){.count = count, .started = 1, .spins = wake_up_spins(crowded)};
    all->members = calloc((size_t)count, sizeof *all->members);
    banyan_status status =
        all->members ? BANYAN_OK : error_no_memory((size_t)count * sizeof *all->members, "workers");
    for (int i = 1; i < count && status == BANYAN_OK; i++) {
        all->members[i] = (struct pool_worker){.all = all, .index = i};
        status = thread_start(&all->members[i].thread, member_main, &all->members[i], false);
        all->started += status == BANYAN_OK;
    }
    if (status != BANYAN_OK) {
        workers_destroy(all);
        return status;
    }
    *made = all;
    return BANYAN_OK;
}

void workers_destroy(worker_pool *all)
{
    if (!all)
        return;
    atomic_store(&all->leaving, true);
    workers_begin(all);
    for (int i = 1; i < all->started; i++)
        pthread_join(all->members[i].thread, NULL);
    free(all->members);
    free(all);
}

void workers_run(worker_pool *all, void (*work)(void *context, int worker), void *context)
{
    all->work = work;
    all->context = context;
    atomic_store_explicit(&all->busy, all->count - 1, memory_order_relaxed);
    workers_begin(all);
    work(context, 0);
    for (uint32_t i = 0;; i++) {
        uint32_t seen = wake_up_read(&all->end);
        if (atomic_load_explicit(&all->busy, memory_order_acquire) == 0)
            return;
        if (i < all->spins)
            spin_pause();
        else
            wake_up_sleep(&all->end, seen, WAKE_UP_NAP_NS);
    }
}
