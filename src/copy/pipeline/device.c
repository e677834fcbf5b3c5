#include "copy/pipeline/device.h"

#include <stdio.h>
#include <stdlib.h>

#include "copy/match/match.h"
#include "copy/pipeline/steps.h"
#include "core/module.h"
#include "memory/device.h"

typedef struct device_state {
    banyan_world *world;
    control_timeout timeout;
    const copy_gpu_pipeline_ops *ops;
    void *gpu_pipeline;
    gpu_pipeline_slots slots;
    bool optimal_rounds;
} device_state;

/* ---- open and close ---- */

static void pipeline_device_state_close(void *argument)
{
    device_state *state = argument;
    if (state->gpu_pipeline)
        state->ops->close(state->gpu_pipeline);
    free(state);
}

static banyan_status find_gpu_pipeline(DLDevice device, const copy_gpu_pipeline_ops **ops)
{
    const memory_device_ops *memory;
    const module_tables *tables;
    RETURN_IF_FAILED(memory_device_find(device.device_type, &memory));
    RETURN_IF_FAILED(memory->open(device.device_id));
    RETURN_IF_FAILED(module_load(memory->name, &tables));
    if (!tables->gpu_pipeline)
        return error_set(BANYAN_ERR_UNSUPPORTED, "module %s has no pipeline", tables->name);
    *ops = tables->gpu_pipeline;
    return BANYAN_OK;
}

static banyan_status open_gpu_pipeline(device_state *state, const banyan_copy_options *options)
{
    RETURN_IF_FAILED(copy_agree(state->world, find_gpu_pipeline(options->device, &state->ops)));
    return copy_agree(state->world,
                      state->ops->open(state->world, options->device.device_id, options->transport,
                                       options->slot_bytes, &state->gpu_pipeline, &state->slots));
}

static banyan_status pipeline_device_state_open(banyan_world *world,
                                                const banyan_copy_options *options, void **opened)
{
    void *memory;
    RETURN_IF_FAILED(copy_alloc_on_all(world, sizeof(device_state), "a copy backend", &memory));
    device_state *state = memory;
    state->world = world;
    state->timeout = control_timeout_now(world);
    state->optimal_rounds = options->optimal_rounds;
    banyan_status status = open_gpu_pipeline(state, options);
    if (status == BANYAN_OK)
        *opened = state;
    else
        pipeline_device_state_close(state);
    return status;
}

/* ---- schedules ---- */

static void pipeline_device_release(void *argument, void *work)
{
    const device_state *state = argument;
    state->ops->release(work);
}

static banyan_status pipeline_device_prepare(void *argument, const banyan_copy_batch *batch,
                                             void **work)
{
    const device_state *state = argument;
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

/* ---- runs ---- */

static banyan_status pipeline_device_check(void *argument)
{
    const device_state *state = argument;
    device_report report;
    char lacks[80];
    state->ops->check(state->gpu_pipeline, &report);
    snprintf(lacks, sizeof lacks, "a %s rank %d", report.for_data ? "batch from" : "slot of",
             report.peer);
    return device_report_status(state->world, "pipeline", state->timeout, &report, lacks);
}

static banyan_status pipeline_device_execute(void *argument, void *work, void *stream)
{
    const device_state *state = argument;
    RETURN_IF_FAILED(pipeline_device_check(argument));
    return state->ops->run(work, stream);
}

const banyan_copy_backend copy_backend_pipeline_device = {
    .size = sizeof(banyan_copy_backend),
    .name = "pipeline",
    .capabilities = BANYAN_COPY_STRIDED | BANYAN_COPY_MATCH_BY_ORDER | BANYAN_COPY_KEEPS_SCHEDULES,
    .open = pipeline_device_state_open,
    .close = pipeline_device_state_close,
    .prepare = pipeline_device_prepare,
    .execute = pipeline_device_execute,
    .release = pipeline_device_release,
    .check = pipeline_device_check,
};
