/* The copy backend "nccl". */
#include <stdlib.h>
#include <string.h>

#include "core/module.h"
#include "cuda/copy/nccl/plan.h"
#include "cuda/copy/nccl/session.h"
#include "cuda/driver.h"
#include "cuda/memory/memory.h"
#include "cuda/module.h"

#define TOKEN_BYTES 16

typedef struct nccl_state {
    banyan_world *world;
    DLDevice device;
    banyan_copy_service *direct;
    banyan_memory *tokens; /* one from each rank of the world, and one to send */
    nccl_session session;
    bool is_connected;
} nccl_state;

typedef struct nccl_schedule {
    nccl_plan plan;
    char *staging;
    /* Synchronizes partners, and moves data from this rank to itself; NULL if no rank has any
     * tasks. */
    banyan_copy_schedule *barrier;
    banyan_copy_schedule **packing, **unpacking; /* one for each window; NULL if no rank packs */
    size_t packed_windows;
    CUevent ended; /* after the last run outside of graphs */
    bool has_run;
} nccl_schedule;

/* Return the largest value of all ranks. */
static banyan_status nccl_backend_largest(banyan_world *world, uint64_t mine, uint64_t *most)
{
    uint64_t *all = calloc((size_t)banyan_world_size(world), sizeof *all);
    banyan_status status = banyan_module_agree(
        world, all ? BANYAN_OK : banyan_error_set(BANYAN_ERR_NO_MEMORY, "nccl: out of memory"));
    if (status == BANYAN_OK)
        status = banyan_world_allgather(world, &mine, sizeof mine, all);
    *most = 0;
    for (int rank = 0; status == BANYAN_OK && rank < banyan_world_size(world); rank++)
        *most = all[rank] > *most ? all[rank] : *most;
    free(all);
    return status;
}

static void nccl_backend_state_close(void *argument)
{
    nccl_state *state = argument;
    if (state->is_connected && driver_enter(state->device.device_id) == BANYAN_OK) {
        nccl_session_close(&state->session);
        driver_leave();
    }
    banyan_copy_service_close(state->direct);
    banyan_memory_free(state->tokens);
    free(state);
}

static banyan_status connect_state(nccl_state *state)
{
    RETURN_IF_FAILED(driver_enter(state->device.device_id));
    banyan_status status =
        nccl_session_open(state->world, state->device.device_id, state->direct, &state->session);
    state->is_connected = status == BANYAN_OK;
    driver_leave();
    return status;
}

static banyan_status nccl_backend_open_shared(nccl_state *state)
{
    banyan_copy_options options = BANYAN_COPY_OPTIONS_INIT;
    options.device = state->device;
    banyan_status status = banyan_module_agree(state->world, nccl_load());
    if (status == BANYAN_OK)
        status = banyan_copy_service_open(state->world, "direct", &options, &state->direct);
    size_t tokens = (size_t)banyan_world_size(state->world) + 1;
    if (status == BANYAN_OK)
        status = banyan_memory_alloc_on(state->world, state->device, tokens * TOKEN_BYTES,
                                        &state->tokens);
    return status == BANYAN_OK ? banyan_module_agree(state->world, connect_state(state)) : status;
}

static banyan_status nccl_backend_state_open(banyan_world *world,
                                             const banyan_copy_options *options, void **opened)
{
    nccl_state *state = calloc(1, sizeof *state);
    banyan_status status = banyan_module_agree(
        world, state ? BANYAN_OK : banyan_error_set(BANYAN_ERR_NO_MEMORY, "nccl: out of memory"));
    if (status != BANYAN_OK) {
        free(state);
        return status;
    }
    state->world = world;
    state->device = options->device;
    status = nccl_backend_open_shared(state);
    if (status == BANYAN_OK)
        *opened = state;
    else
        nccl_backend_state_close(state);
    return status;
}

static DLTensor token_at(const nccl_state *state, int number)
{
    static int64_t shape[] = {TOKEN_BYTES};
    return (DLTensor){.data = (char *)banyan_memory_local(state->tokens) + number * TOKEN_BYTES,
                      .device = state->device,
                      .ndim = 1,
                      .dtype = BANYAN_U8,
                      .shape = shape};
}

/* Exchange a token with every partner. */
static banyan_status submit_tokens(const nccl_state *state, const nccl_plan *plan)
{
    int size = banyan_world_size(state->world);
    bool *partners = calloc((size_t)size, sizeof *partners);
    if (!partners)
        return banyan_error_set(BANYAN_ERR_NO_MEMORY, "nccl: out of memory");
    for (size_t i = 0; i < plan->count; i++)
        partners[plan->tasks[i].op.peer] = true;
    banyan_status status = BANYAN_OK;
    for (int peer = 0; peer < size && status == BANYAN_OK; peer++) {
        DLTensor given = token_at(state, size), taken = token_at(state, peer);
        if (!partners[peer])
            continue;
        status = banyan_copy_service_submit_send(state->direct, &given, peer, 0);
        if (status == BANYAN_OK)
            status = banyan_copy_service_submit_recv(state->direct, &taken, peer, 0);
    }
    free(partners);
    return status;
}

static banyan_status submit_pair(const nccl_state *state, const DLTensor *from, const DLTensor *to,
                                 uint64_t id)
{
    int rank = banyan_world_rank(state->world);
    RETURN_IF_FAILED(banyan_copy_service_submit_send(state->direct, from, rank, id));
    return banyan_copy_service_submit_recv(state->direct, to, rank, id);
}

/* Prepare the submitted tasks; all ranks call it. If a rank failed to submit all its tasks, all
 * ranks receive that error, not a mismatch between partners. */
static banyan_status prepare_submitted(nccl_state *state, banyan_status submitted,
                                       banyan_copy_schedule **made)
{
    error_kept kept = error_keep(banyan_module_agree(state->world, submitted));
    banyan_status status = banyan_copy_service_prepare(state->direct, made);
    if (kept.status != BANYAN_OK)
        return error_again(&kept);
    return banyan_module_agree(state->world, status);
}

static banyan_status prepare_barrier(nccl_state *state, nccl_schedule *schedule,
                                     const banyan_copy_batch *batch)
{
    banyan_status mine = submit_tokens(state, &schedule->plan);
    for (size_t i = 0; i < batch->local_count && mine == BANYAN_OK; i++)
        mine = submit_pair(state, &batch->sends[batch->local[i].send].tensor,
                           &batch->recvs[batch->local[i].recv].tensor, i);
    return prepare_submitted(state, mine, &schedule->barrier);
}

static banyan_status prepare_packing(nccl_state *state, nccl_schedule *schedule, size_t number,
                                     bool packs, banyan_copy_schedule **made)
{
    banyan_status mine = BANYAN_OK;
    const nccl_plan *plan = &schedule->plan;
    nccl_window none = {0};
    const nccl_window *window = number < plan->window_count ? &plan->windows[number] : &none;
    for (size_t i = 0; i < window->count && mine == BANYAN_OK; i++) {
        const nccl_task *task = &plan->tasks[window->first + i];
        if (!task->is_packed || task->is_send != packs)
            continue;
        DLTensor staged = nccl_task_staged(task, schedule->staging);
        mine = packs ? submit_pair(state, &task->op.tensor, &staged, i)
                     : submit_pair(state, &staged, &task->op.tensor, i);
    }
    return prepare_submitted(state, mine, made);
}

static banyan_status alloc_staging(nccl_state *state, nccl_schedule *schedule)
{
    void *staging = NULL;
    size_t bytes = schedule->plan.staging_bytes;
    if (bytes > 0)
        RETURN_IF_FAILED(cuda_memory_ops.alloc(state->device.device_id, bytes, &staging));
    schedule->staging = staging;
    nccl_plan_place(&schedule->plan, staging);
    schedule->packing = calloc(schedule->packed_windows + 1, sizeof *schedule->packing);
    schedule->unpacking = calloc(schedule->packed_windows + 1, sizeof *schedule->unpacking);
    if (!schedule->packing || !schedule->unpacking)
        return banyan_error_set(BANYAN_ERR_NO_MEMORY, "nccl: out of memory");
    return DRIVER_WITHIN(
        state->device.device_id,
        DRIVER(state->device.device_id, cuEventCreate, &schedule->ended, CU_EVENT_DISABLE_TIMING));
}

/* If some rank packs, all ranks prepare equally many windows. */
static banyan_status prepare_windows(nccl_state *state, nccl_schedule *schedule)
{
    for (size_t w = 0; w < schedule->packed_windows; w++) {
        RETURN_IF_FAILED(prepare_packing(state, schedule, w, true, &schedule->packing[w]));
        RETURN_IF_FAILED(prepare_packing(state, schedule, w, false, &schedule->unpacking[w]));
    }
    return BANYAN_OK;
}

static banyan_status nccl_backend_fill_schedule(nccl_state *state, const banyan_copy_batch *batch,
                                                nccl_schedule *schedule)
{
    banyan_world *world = state->world;
    banyan_status status =
        banyan_module_agree(world, nccl_plan_make(batch, banyan_world_rank(world),
                                                  banyan_world_size(world), &schedule->plan));
    uint64_t mine = schedule->plan.staging_bytes > 0 ? schedule->plan.window_count : 0, most = 0;
    if (status == BANYAN_OK)
        status = nccl_backend_largest(world, mine, &most);
    schedule->packed_windows = (size_t)most;
    if (status == BANYAN_OK)
        status = banyan_module_agree(world, alloc_staging(state, schedule));
    if (status == BANYAN_OK)
        status = prepare_barrier(state, schedule, batch);
    return status == BANYAN_OK ? prepare_windows(state, schedule) : status;
}

static void free_schedules(banyan_copy_schedule **list, size_t count)
{
    for (size_t i = 0; list && i < count; i++)
        banyan_copy_schedule_destroy(list[i]);
    free(list);
}

static void nccl_backend_release(void *argument, void *planned)
{
    const nccl_state *state = argument;
    nccl_schedule *schedule = planned;
    if (driver_enter(state->device.device_id) == BANYAN_OK) {
        driver_end_runs(schedule->ended, schedule->has_run);
        driver_leave();
    }
    banyan_copy_schedule_destroy(schedule->barrier);
    free_schedules(schedule->packing, schedule->packed_windows);
    free_schedules(schedule->unpacking, schedule->packed_windows);
    cuda_memory_ops.free(state->device.device_id, schedule->staging);
    nccl_plan_free(&schedule->plan);
    free(schedule);
}

static banyan_status nccl_backend_prepare(void *argument, const banyan_copy_batch *batch,
                                          void **planned)
{
    nccl_state *state = argument;
    RETURN_IF_FAILED(banyan_copy_match_batch(state->world, "nccl", batch));
    nccl_schedule *schedule = calloc(1, sizeof *schedule);
    banyan_status status = banyan_module_agree(
        state->world,
        schedule ? BANYAN_OK : banyan_error_set(BANYAN_ERR_NO_MEMORY, "nccl: out of memory"));
    if (status == BANYAN_OK)
        status = nccl_backend_fill_schedule(state, batch, schedule);
    if (status == BANYAN_OK)
        *planned = schedule;
    else if (schedule)
        nccl_backend_release(argument, schedule);
    return status;
}

static banyan_status run_window(nccl_state *state, nccl_schedule *schedule, size_t number,
                                void *stream)
{
    const nccl_window *window = &schedule->plan.windows[number];
    banyan_status status = BANYAN_OK;
    if (window->packs)
        status = banyan_copy_schedule_run(schedule->packing[number], stream);
    if (status == BANYAN_OK)
        status = nccl_session_group(&state->session, schedule->plan.messages + window->first,
                                    window->count, stream);
    if (status == BANYAN_OK && window->unpacks)
        status = banyan_copy_schedule_run(schedule->unpacking[number], stream);
    return status;
}

/* A window that began also ends, even after an error between. */
static banyan_status run_windows(nccl_state *state, nccl_schedule *schedule, void *stream)
{
    banyan_status status = nccl_session_mark(&state->session, stream);
    if (status != BANYAN_OK)
        return status;
    for (size_t w = 0; w < schedule->plan.window_count && status == BANYAN_OK; w++)
        status = run_window(state, schedule, w, stream);
    banyan_status marked = nccl_session_mark(&state->session, stream);
    return status == BANYAN_OK ? marked : status;
}

static banyan_status nccl_backend_check(void *argument)
{
    nccl_state *state = argument;
    return nccl_session_check(&state->session);
}

/* After partners have synchronized, NCCL's kernels wait only for dead ranks. The session's watch
 * detects these, and every run that does not end. */
static banyan_status nccl_backend_execute(void *argument, void *planned, void *stream)
{
    nccl_state *state = argument;
    nccl_schedule *schedule = planned;
    RETURN_IF_FAILED(nccl_backend_check(argument));
    RETURN_IF_FAILED(driver_enter(state->device.device_id));
    banyan_status status = banyan_copy_schedule_run(schedule->barrier, stream);
    if (status == BANYAN_OK)
        status = run_windows(state, schedule, stream);
    if (status == BANYAN_OK)
        status =
            driver_record_run(state->device.device_id, stream, schedule->ended, &schedule->has_run);
    driver_leave();
    return status;
}

const banyan_copy_backend cuda_nccl_backend = {
    .size = sizeof(banyan_copy_backend),
    .name = "nccl",
    .capabilities = BANYAN_COPY_STRIDED | BANYAN_COPY_MATCH_BY_ORDER | BANYAN_COPY_KEEPS_SCHEDULES,
    .open = nccl_backend_state_open,
    .close = nccl_backend_state_close,
    .prepare = nccl_backend_prepare,
    .execute = nccl_backend_execute,
    .release = nccl_backend_release,
    .check = nccl_backend_check,
};
