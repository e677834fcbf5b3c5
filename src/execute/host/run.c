#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/threads/thread.h"
#include "execute/device/device.h"
#include "execute/host/task.h"
#include "execute/load/binding.h"
#include "execute/shuffle/shuffle.h"
#include "world/control.h"

/* Largest number of specialized plans that are kept. */
#define SPECIALIZED_MOST 16

static bool specialized_fits(const specialized_plan *of, uint64_t message_bytes, DLDataType dtype)
{
    return of->message_bytes == message_bytes && banyan_dtype_equal(of->dtype, dtype);
}

static void drop_specialized(banyan_loaded_plan *loaded, size_t at)
{
    specialized_plan *old = loaded->specialized.data[at];
    for (int i = 0; i < 2; i++) {
        if (loaded->bindings[i].specialized == old)
            loaded->bindings[i].specialized = NULL;
    }
    device_drop_specialized(loaded, old);
    pthread_mutex_lock(&loaded->waits.lock);
    loaded->specialized.count--;
    for (size_t i = at; i < loaded->specialized.count; i++)
        loaded->specialized.data[i] = loaded->specialized.data[i + 1];
    pthread_mutex_unlock(&loaded->waits.lock);
    specialize_free(old);
}

/* Graphs refer to captured specialized plans, so these stay. */
static void host_run_make_room(banyan_loaded_plan *loaded)
{
    size_t oldest = 0;
    while (oldest < loaded->specialized.count && loaded->specialized.data[oldest]->captured)
        oldest++;
    if (loaded->specialized.count >= SPECIALIZED_MOST && oldest < loaded->specialized.count)
        drop_specialized(loaded, oldest);
}

static banyan_status check_message(const banyan_loaded_plan *loaded, uint64_t message_bytes)
{
    if (message_bytes <= loaded->max_message_bytes)
        return BANYAN_OK;
    return error_set(BANYAN_ERR_INVALID,
                     "rank %d: a message of %" PRIu64 " bytes is longer than the %" PRIu64
                     " that its plan was loaded for",
                     loaded->executor->rank, message_bytes, loaded->max_message_bytes);
}

static banyan_status add_specialized(banyan_loaded_plan *loaded, uint64_t message_bytes,
                                     DLDataType dtype)
{
    RETURN_IF_FAILED(check_message(loaded, message_bytes));
    specialized_plan *made;
    RETURN_IF_FAILED(specialize_make(loaded, message_bytes, dtype, &made));
    bool on_host = executor_is_host(loaded->executor);
    for (uint32_t i = 0; i < loaded->task_count && on_host; i++) {
        banyan_status status = task_prepare(&loaded->tasks[i], &made->blocks[i]);
        if (status != BANYAN_OK) {
            specialize_free(made);
            return status;
        }
    }
    host_run_make_room(loaded);
    pthread_mutex_lock(&loaded->waits.lock);
    bool added = array_push(&loaded->specialized, made);
    pthread_mutex_unlock(&loaded->waits.lock);
    if (!added)
        specialize_free(made);
    return added ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
}

/* The list is in order of use, the latest last. */
static banyan_status find_specialized(banyan_loaded_plan *loaded, uint64_t message_bytes,
                                      DLDataType dtype, specialized_plan **found)
{
    size_t at = loaded->specialized.count;
    while (at > 0 && !specialized_fits(loaded->specialized.data[at - 1], message_bytes, dtype))
        at--;
    if (at == 0)
        RETURN_IF_FAILED(add_specialized(loaded, message_bytes, dtype));
    if (at > 0 && at < loaded->specialized.count) {
        pthread_mutex_lock(&loaded->waits.lock);
        for (; at < loaded->specialized.count; at++) {
            specialized_plan *later = loaded->specialized.data[at];
            loaded->specialized.data[at] = loaded->specialized.data[at - 1];
            loaded->specialized.data[at - 1] = later;
        }
        pthread_mutex_unlock(&loaded->waits.lock);
    }
    *found = loaded->specialized.data[loaded->specialized.count - 1];
    return BANYAN_OK;
}

/* Flags distinguish new packets from stale ones. When the flag wraps, stale packets of 2^32 runs
 * ago would match. So no rank may still be in an earlier run at that moment, and old packets must
 * be cleared. */
static banyan_status begin_flags_anew(banyan_loaded_plan *loaded)
{
    banyan_executor *executor = loaded->executor;
    RETURN_IF_FAILED(banyan_world_barrier(executor->world));
    const block_layout *layout = &loaded->layouts[executor->rank];
    if (loaded->block)
        memset((char *)banyan_memory_local(loaded->block) + layout->scratch, 0,
               layout->scratch_bytes);
    RETURN_IF_FAILED(banyan_world_barrier(executor->world));
    loaded->flag = 1;
    return BANYAN_OK;
}

static banyan_status take_flags(banyan_loaded_plan *loaded, const specialized_plan *specialized,
                                uint32_t *first)
{
    if (loaded->flag > UINT32_MAX - specialized->flags)
        RETURN_IF_FAILED(begin_flags_anew(loaded));
    *first = loaded->flag;
    loaded->flag += specialized->flags;
    return BANYAN_OK;
}

static void begin_tasks(banyan_loaded_plan *loaded, const plan_run *of)
{
    const plan_rank *rank = &loaded->plan->ranks[loaded->executor->rank];
    for (uint32_t i = 0; i < rank->semaphore_count; i++)
        atomic_store_explicit(&loaded->semaphores[i].value, rank->semaphores[i],
                              memory_order_relaxed);
    for (uint32_t i = 0; i < loaded->task_count; i++)
        task_reset(&loaded->tasks[i], of, i);
}

struct shared_run {
    plan_run *of;
    error_kept failed; /* the worker that failed first */
};

static trace_ring *ring_of(const banyan_executor *executor, int worker)
{
    return executor->trace ? &executor->trace->rings[worker] : NULL;
}

static void host_run_work(void *context, int worker)
{
    struct shared_run *shared = context;
    const banyan_executor *executor = shared->of->loaded->executor;
    banyan_status status = scheduler_run(
        shared->of, (uint32_t)worker, (uint32_t)executor->worker_count, ring_of(executor, worker));
    if (status == BANYAN_OK || atomic_exchange(&shared->of->stopped, true))
        return;
    shared->failed = error_keep(status);
    wake_up_notify(executor_wake_up(executor, executor->rank));
}

static banyan_status run_tasks(plan_run *of)
{
    const banyan_executor *executor = of->loaded->executor;
    if (!executor->pool || of->loaded->task_count < 2)
        return scheduler_run(of, 0, 1, ring_of(executor, 0));
    of->shared = true;
    struct shared_run shared = {.of = of};
    workers_run(executor->pool, host_run_work, &shared);
    return error_again(&shared.failed);
}

/* Wait until the proxy and the transport are done, also after a failed run: they still read the
 * caller's input, and scratch that the next run uses. The proxy waits for no peer, so this ends. */
static banyan_status drain_ports(const banyan_loaded_plan *loaded)
{
    const banyan_executor *executor = loaded->executor;
    wake_up *own = executor_wake_up(executor, executor->rank);
    uint32_t count = loaded->plan->ranks[executor->rank].channel_count[PLAN_PORT];
    banyan_status status = BANYAN_OK;
    for (uint32_t i = 0; i < count; i++) {
        const port_queue *queue = loaded->ends[PLAN_PORT][i].queue;
        if (!queue) {
            banyan_status settled = remote_port_settle(loaded->ends[PLAN_PORT][i].remote);
            status = status == BANYAN_OK ? settled : status;
            continue;
        }
        uint64_t posted = port_posted(queue);
        for (uint32_t looks = 0; port_done(queue) != posted; looks++) {
            if (looks < wake_up_spins(executor->crowded)) {
                spin_pause();
                continue;
            }
            uint32_t seen = wake_up_announce(own);
            if (port_done(queue) != posted)
                wake_up_sleep_announced(own, seen, WAKE_UP_NAP_NS);
            wake_up_withdraw(own);
        }
    }
    return status;
}

static banyan_status host_run_execute(banyan_loaded_plan *loaded,
                                      const specialized_plan *specialized, const binding *placed)
{
    plan_run of = {.loaded = loaded,
                   .specialized = specialized,
                   .placed = placed,
                   .traces = loaded->executor->trace != NULL};
    RETURN_IF_FAILED(take_flags(loaded, specialized, &of.flag));
    binding_copy_in(placed);
    banyan_redirection redirection;
    bool redirects = binding_redirection(loaded, placed, &redirection);
    if (redirects)
        transport_redirect(loaded->executor->transports, &redirection);
    begin_tasks(loaded, &of);
    banyan_status status = BANYAN_OK;
    if (loaded->executor->shuffle_seed != 0)
        status = shuffle_begin(loaded, &of);
    if (status == BANYAN_OK)
        status = run_tasks(&of);
    if (status == BANYAN_OK && loaded->shuffle)
        shuffle_end(loaded);
    const error_kept failed = error_keep(status);
    status = drain_ports(loaded);
    if (redirects)
        transport_redirect(loaded->executor->transports, NULL);
    if (failed.status != BANYAN_OK)
        status = error_again(&failed);
    if (status != BANYAN_OK)
        return control_fail(loaded->executor->world, status);
    binding_copy_out(placed, &redirection);
    return BANYAN_OK;
}

/* On a device, `begin` only queues the run. A call with zero bytes makes no run: in plans whose
 * data signal their own arrival, such a run would switch this rank to the other half of scratch
 * without synchronizing with any peer. */
static banyan_status host_run_begin(banyan_loaded_plan *loaded, const void *input, void *output,
                                    uint64_t message_bytes, DLDataType dtype, void *stream,
                                    specialized_plan **specialized)
{
    binding *placed = &loaded->bindings[loaded->runs & 1];
    RETURN_IF_FAILED(find_specialized(loaded, message_bytes, dtype, specialized));
    if (message_bytes == 0)
        return BANYAN_OK;
    if (!executor_is_host(loaded->executor))
        return device_run(loaded, *specialized, input, output, stream);
    if (placed->specialized == *specialized && placed->input == input && placed->output == output)
        return BANYAN_OK;
    return binding_make(loaded, *specialized, input, output, placed);
}

/* Handle a run that this rank could not start, for lack of memory or because it could not queue
 * it. Its peers make that run, so this rank's next run would run beside their previous one. On the
 * host the world ends now; otherwise the peers would end it after their timeout. On a device this
 * rank makes no more runs until a reset. */
static banyan_status fall_behind(banyan_loaded_plan *loaded, banyan_status status)
{
    const banyan_executor *executor = loaded->executor;
    if (status != BANYAN_ERR_NO_MEMORY && status != BANYAN_ERR_SYSTEM)
        return status;
    char what[640], own[CONTROL_RANK_BYTES];
    snprintf(what, sizeof what, "could not begin a run of plan \"%s\", which others make: %s",
             loaded->plan->name, banyan_last_error());
    if (executor_is_host(executor))
        (void)banyan_world_abort(executor->world, what);
    (void)error_set(status, "%s %s", control_own_name(executor->world, own), what);
    if (!executor_is_host(executor))
        device_fail(loaded, status);
    return status;
}

banyan_status banyan_loaded_plan_run(banyan_loaded_plan *loaded, const void *input, void *output,
                                     uint64_t message_bytes, DLDataType dtype, void *stream)
{
    bool on_host = executor_is_host(loaded->executor);
    specialized_plan *specialized = NULL;
    if (on_host)
        RETURN_IF_FAILED(stream_check_none(stream, loaded->executor->rank, "a plan"));
    else
        RETURN_IF_FAILED(device_status(loaded));
    banyan_world *world = loaded->executor->world;
    RETURN_IF_FAILED(control_fail_late_run(world, control_check(world)));
    banyan_status status =
        host_run_begin(loaded, input, output, message_bytes, dtype, stream, &specialized);
    if (status != BANYAN_OK)
        return fall_behind(loaded, status);
    if (!on_host || message_bytes == 0)
        return BANYAN_OK;
    binding *placed = &loaded->bindings[loaded->runs++ & 1];
    return host_run_execute(loaded, specialized, placed);
}

banyan_status banyan_loaded_plan_status(banyan_loaded_plan *loaded)
{
    if (!executor_is_host(loaded->executor))
        RETURN_IF_FAILED(device_status(loaded));
    return control_check(loaded->executor->world);
}

static banyan_status reset_host(banyan_loaded_plan *loaded)
{
    const banyan_executor *executor = loaded->executor;
    const block_layout *layout = &loaded->layouts[executor->rank];
    const plan_rank *rank = &loaded->plan->ranks[executor->rank];
    if (layout->bytes > 0)
        memset(banyan_memory_local(loaded->block), 0, layout->scratch + layout->scratch_bytes);
    for (int type = PLAN_MEMORY; type <= PLAN_PORT; type++) {
        for (uint32_t i = 0; i < rank->channel_count[type]; i++)
            atomic_store(&loaded->ends[type][i].consumed, 0);
    }
    for (uint32_t i = 0; i < loaded->barrier_count; i++)
        atomic_store(&loaded->barriers[i].value, 0);
    loaded->runs = 0;
    loaded->flag = 1;
    return BANYAN_OK;
}

/* All ranks synchronize before and after the reset: no memory is cleared while a peer's run still
 * writes there, and no rank starts a run while a peer clears its memory. */
banyan_status banyan_loaded_plan_reset(banyan_loaded_plan *loaded)
{
    banyan_executor *executor = loaded->executor;
    CONTROL_ENTER_WITHIN(executor->world, executor->timeout);
    bool on_host = executor_is_host(executor);
    RETURN_IF_FAILED(control_agree(executor->world, on_host ? BANYAN_OK : device_drain(loaded)));
    return control_agree(executor->world, on_host ? reset_host(loaded) : device_reset(loaded));
}

/* The arguments of a run. */
struct run_call {
    banyan_loaded_plan *loaded;
    const void *input;
    void *output;
    uint64_t message_bytes;
    DLDataType dtype;
};

static banyan_status host_run_started(void *context)
{
    struct run_call started = *(struct run_call *)context;
    free(context);
    return banyan_loaded_plan_run(started.loaded, started.input, started.output,
                                  started.message_bytes, started.dtype, NULL);
}

banyan_status banyan_loaded_plan_start(banyan_loaded_plan *loaded, const void *input, void *output,
                                       uint64_t message_bytes, DLDataType dtype,
                                       banyan_request **request)
{
    if (!executor_is_host(loaded->executor))
        return error_set(BANYAN_ERR_UNSUPPORTED,
                         "rank %d: runs on a GPU go on by themselves in their stream, and have no "
                         "request to wait for",
                         loaded->executor->rank);
    struct run_call *started = malloc(sizeof *started);
    banyan_status status;
    if (started) {
        *started = (struct run_call){loaded, input, output, message_bytes, dtype};
        status = request_start(host_run_started, started, request);
    } else {
        status = error_no_memory(sizeof *started, "a run of a plan");
    }
    if (status != BANYAN_OK)
        free(started);
    return control_fail(loaded->executor->world, status); /* others may wait in their runs */
}

banyan_status banyan_loaded_plan_wait(banyan_loaded_plan *loaded)
{
    if (!executor_is_host(loaded->executor))
        RETURN_IF_FAILED(device_drain(loaded));
    return banyan_loaded_plan_status(loaded);
}

static banyan_status queue_run(void *context, void *stream)
{
    const struct run_call *run = context;
    return banyan_loaded_plan_run(run->loaded, run->input, run->output, run->message_bytes,
                                  run->dtype, stream);
}

/* Use one graph of runs, so that no host time lies between two runs on a device. */
static banyan_status time_on_device(struct run_call *run, uint32_t runs, uint64_t *ns)
{
    const banyan_executor *executor = run->loaded->executor;
    void *recorded = NULL;
    banyan_status status =
        control_agree(executor->world, executor->engine_ops->record(executor->engine, queue_run,
                                                                    run, runs, &recorded));
    if (status == BANYAN_OK)
        status = executor->engine_ops->play(recorded, ns);
    executor->engine_ops->forget(recorded);
    return status == BANYAN_OK ? banyan_loaded_plan_status(run->loaded) : status;
}

banyan_status banyan_loaded_plan_time(banyan_loaded_plan *loaded, const void *input, void *output,
                                      uint64_t message_bytes, DLDataType dtype, uint32_t runs,
                                      uint64_t *ns)
{
    struct run_call run = {loaded, input, output, message_bytes, dtype};
    banyan_world *world = loaded->executor->world;
    CONTROL_ENTER_WITHIN(world, loaded->executor->timeout);
    if (!executor_is_host(loaded->executor))
        return time_on_device(&run, runs, ns);
    RETURN_IF_FAILED(banyan_world_barrier(world));
    uint64_t began_ns = time_now_ns();
    for (uint32_t i = 0; i < runs; i++)
        RETURN_IF_FAILED(queue_run(&run, NULL));
    *ns = time_now_ns() - began_ns;
    return BANYAN_OK;
}
