#include "copy/pipeline/backend.h"

#include <stdio.h>
#include <stdlib.h>

#include "copy/match/match.h"
#include "copy/schedule/plan.h"
#include "copy/service/backends.h"
#include "copy/service/device.h"
#include "copy/strided/strided.h"
#include "core/error.h"

typedef struct backend_state {
    banyan_world *world;
    banyan_transport *transport;
    banyan_pipeline_buffers *buffers;
    banyan_pipeline_launcher launcher;
    banyan_pipeline *pipeline;
    copy_progress progress;
    bool optimal_rounds;
    bool past_caches; /* the current run moves more than the caches hold */
} backend_state;

static void pipeline_backend_close_state(void *context)
{
    backend_state *state = context;
    banyan_pipeline_destroy(state->pipeline);
    banyan_pipeline_buffers_close(state->buffers);
    banyan_transport_close(state->transport);
    free(state);
}

banyan_status pipeline_open_over(banyan_world *world, banyan_transport *transport,
                                 const banyan_copy_options *options, void **opened)
{
    void *memory;
    banyan_status status =
        copy_alloc_on_all(world, sizeof(backend_state), "a copy backend", &memory);
    if (status != BANYAN_OK) {
        banyan_transport_close(transport);
        return status;
    }
    backend_state *state = memory;
    state->world = world;
    state->transport = transport;
    state->optimal_rounds = options->optimal_rounds;
    copy_progress_open(&state->progress, options);
    state->launcher = pipeline_host_launcher(&state->past_caches);
    status = banyan_pipeline_buffers_open(world, transport, options->slot_bytes, &state->buffers);
    if (status == BANYAN_OK)
        status =
            copy_agree(world, banyan_pipeline_create(&state->launcher, state->buffers,
                                                     banyan_world_rank(world), &state->pipeline));
    if (status != BANYAN_OK) {
        pipeline_backend_close_state(state);
        return status;
    }
    *opened = state;
    return BANYAN_OK;
}

static banyan_status backend_open(banyan_world *world, const banyan_copy_options *options,
                                  void **state)
{
    banyan_transport *transport;
    RETURN_IF_FAILED(banyan_transport_open(world, options->transport, &transport));
    return pipeline_open_over(world, transport, options, state);
}

static banyan_status backend_prepare(void *context, const banyan_copy_batch *batch, void **prepared)
{
    backend_state *state = context;
    void *schedule;
    RETURN_IF_FAILED(
        copy_alloc_on_all(state->world, sizeof(pipeline_schedule), "a schedule", &schedule));
    banyan_status status = pipeline_plan(state->world, state->transport, state->buffers->slot_bytes,
                                         state->optimal_rounds, batch, schedule);
    if (status == BANYAN_OK)
        *prepared = schedule;
    else
        free(schedule);
    return status;
}

static uint64_t backend_bytes(const pipeline_schedule *schedule)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < schedule->iteration_count; i++) {
        const banyan_iteration *iteration = &schedule->iterations[i];
        bytes += iteration->send.peer >= 0 ? iteration->send.bytes : 0;
        bytes += iteration->recv.peer >= 0 ? iteration->recv.bytes : 0;
    }
    return bytes;
}

/* Moves within the rank come last: partners wait for the rest. */
static banyan_status backend_execute(void *context, void *prepared, void *stream)
{
    (void)stream;
    backend_state *state = context;
    const pipeline_schedule *schedule = prepared;
    state->past_caches = schedule->recv_bytes >= STRIDED_STREAMING_BYTES;
    if (state->progress.report)
        copy_progress_begin(&state->progress, backend_bytes(schedule));
    RETURN_IF_FAILED(pipeline_run(state->pipeline, schedule->iterations, schedule->iteration_count,
                                  &state->progress));
    RETURN_IF_FAILED(pipeline_move_pairs(state->pipeline, schedule->sends, schedule->recvs,
                                         schedule->local, schedule->local_count));
    copy_progress_end(&state->progress);
    return BANYAN_OK;
}

static void backend_release(void *context, void *prepared)
{
    (void)context;
    pipeline_schedule_free(prepared);
    free(prepared);
}

const banyan_copy_backend copy_backend_pipeline = {
    .size = sizeof copy_backend_pipeline,
    .name = "pipeline",
    .capabilities = BANYAN_COPY_STRIDED | BANYAN_COPY_MATCH_BY_ORDER | BANYAN_COPY_KEEPS_SCHEDULES,
    .open = backend_open,
    .close = pipeline_backend_close_state,
    .prepare = backend_prepare,
    .execute = backend_execute,
    .release = backend_release,
};

typedef struct pipeline_device_state {
    banyan_world *world;
    control_timeout timeout;
    const copy_gpu_pipeline_ops *ops;
    void *gpu_pipeline;
    gpu_pipeline_slots slots;
    bool optimal_rounds;
} pipeline_device_state;

static void pipeline_device_state_close(void *argument)
{
    pipeline_device_state *state = argument;
    if (state->gpu_pipeline)
        state->ops->close(state->gpu_pipeline);
    free(state);
}

static banyan_status find_gpu_pipeline(DLDevice device, const memory_device_ops **memory,
                                       const copy_gpu_pipeline_ops **ops)
{
    const module_tables *tables;
    RETURN_IF_FAILED(copy_device_find(device, memory, &tables));
    if (!tables->gpu_pipeline)
        return error_set(BANYAN_ERR_UNSUPPORTED, "module %s has no pipeline", tables->name);
    *ops = tables->gpu_pipeline;
    return BANYAN_OK;
}

static banyan_status pipeline_device_state_open(banyan_world *world,
                                                const banyan_copy_options *options, void **opened)
{
    void *taken;
    const memory_device_ops *memory = NULL;
    int device = options->device.device_id, sharers = 0;
    RETURN_IF_FAILED(
        copy_alloc_on_all(world, sizeof(pipeline_device_state), "a copy backend", &taken));
    pipeline_device_state *state = taken;
    state->world = world;
    state->timeout = control_timeout_now(world);
    state->optimal_rounds = options->optimal_rounds;
    banyan_status status =
        copy_agree(world, find_gpu_pipeline(options->device, &memory, &state->ops));
    if (status == BANYAN_OK)
        status = copy_device_sharers(world, memory, device, &sharers);
    if (status == BANYAN_OK)
        status = copy_agree(world, state->ops->open(world, device, sharers, options->transport,
                                                    options->slot_bytes, &state->gpu_pipeline,
                                                    &state->slots));
    if (status == BANYAN_OK)
        *opened = state;
    else
        pipeline_device_state_close(state);
    return status;
}

static void pipeline_device_release(void *argument, void *work)
{
    const pipeline_device_state *state = argument;
    state->ops->release(work);
}

static banyan_status pipeline_device_prepare(void *argument, const banyan_copy_batch *batch,
                                             void **work)
{
    const pipeline_device_state *state = argument;
    pipeline_schedule schedule;
    gpu_pipeline_steps steps;
    void *made = NULL;
    RETURN_IF_FAILED(pipeline_plan(state->world, NULL, state->slots.bytes, state->optimal_rounds,
                                   batch, &schedule));
    banyan_status status = gpu_pipeline_steps_make(state->world, &schedule, &state->slots, &steps);
    pipeline_schedule_free(&schedule);
    if (status != BANYAN_OK)
        return status;
    status = state->ops->prepare(state->gpu_pipeline, steps.list, steps.count, &steps.local, &made);
    gpu_pipeline_steps_free(&steps);
    return copy_keep_on_all(state->world, status, made, pipeline_device_release, argument, work);
}

static banyan_status pipeline_device_check(void *argument)
{
    const pipeline_device_state *state = argument;
    device_report report;
    char lacks[80];
    state->ops->check(state->gpu_pipeline, &report);
    snprintf(lacks, sizeof lacks, "a %s rank %d",
             device_report_own(&report) ? "batch from" : "slot of", device_report_rank(&report));
    return copy_device_status(state->world, "pipeline", state->timeout, &report, lacks);
}

static banyan_status pipeline_device_execute(void *argument, void *work, void *stream)
{
    const pipeline_device_state *state = argument;
    RETURN_IF_FAILED(pipeline_device_check(argument));
    return state->ops->run(work, stream);
}

const banyan_copy_backend copy_backend_pipeline_device = {
    .size = sizeof(banyan_copy_backend),
    .name = "pipeline",
    .capabilities = BANYAN_COPY_STRIDED | BANYAN_COPY_MATCH_BY_ORDER | BANYAN_COPY_KEEPS_SCHEDULES |
                    BANYAN_COPY_CASTS,
    .open = pipeline_device_state_open,
    .close = pipeline_device_state_close,
    .prepare = pipeline_device_prepare,
    .execute = pipeline_device_execute,
    .release = pipeline_device_release,
    .check = pipeline_device_check,
};
