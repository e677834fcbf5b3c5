#include "copy/pipeline_device.h"

#include <stdlib.h>

#include "copy/match.h"
#include "copy/pipeline_steps.h"
#include "core/deadline.h"
#include "core/module.h"
#include "memory/device.h"

typedef struct device_state {
    banyan_world *world;
    const copy_courier_ops *ops;
    void *courier;
    courier_slots slots;
    bool optimal_rounds;
} device_state;

/* ---- open and close ---- */

static void state_close(void *argument)
{
    device_state *state = argument;
    if (state->courier)
        state->ops->close(state->courier);
    free(state);
}

static banyan_status find_courier(DLDevice device, const copy_courier_ops **ops)
{
    const memory_device_ops *memory;
    const module_tables *tables;
    RETURN_IF_FAILED(memory_device_find(device.device_type, &memory));
    RETURN_IF_FAILED(memory->open(device.device_id));
    RETURN_IF_FAILED(module_load(memory->name, &tables));
    if (!tables->courier)
        return error_set(BANYAN_ERR_UNSUPPORTED, "module %s has no pipeline", tables->name);
    *ops = tables->courier;
    return BANYAN_OK;
}

static banyan_status open_courier(device_state *state, const banyan_copy_options *options)
{
    RETURN_IF_FAILED(copy_agree(state->world, find_courier(options->device, &state->ops)));
    return copy_agree(state->world,
                      state->ops->open(state->world, options->device.device_id, options->transport,
                                       options->slot_bytes, &state->courier, &state->slots));
}

static banyan_status state_open(banyan_world *world, const banyan_copy_options *options,
                                void **opened)
{
    void *memory;
    RETURN_IF_FAILED(copy_alloc_on_all(world, sizeof(device_state), "a copy backend", &memory));
    device_state *state = memory;
    state->world = world;
    state->optimal_rounds = options->optimal_rounds;
    banyan_status status = open_courier(state, options);
    if (status == BANYAN_OK)
        *opened = state;
    else
        state_close(state);
    return status;
}

/* ---- schedules ---- */

static banyan_status prepare(void *argument, const banyan_copy_batch *batch, void **work)
{
    const device_state *state = argument;
    pipeline_schedule schedule;
    courier_steps steps;
    void *made = NULL;
    RETURN_IF_FAILED(pipeline_plan(state->world, NULL, state->slots.bytes, state->optimal_rounds,
                                   batch, &schedule));
    banyan_status status = courier_steps_make(state->world, &schedule, &state->slots, &steps);
    pipeline_schedule_free(&schedule);
    if (status != BANYAN_OK)
        return status;
    status = state->ops->prepare(state->courier, steps.list, steps.count, &steps.local, &made);
    courier_steps_free(&steps);
    banyan_status agreed = copy_agree(state->world, status);
    if (agreed == BANYAN_OK)
        *work = made;
    else if (status == BANYAN_OK)
        state->ops->release(made);
    return agreed;
}

static void release(void *argument, void *work)
{
    const device_state *state = argument;
    state->ops->release(work);
}

/* ---- runs ---- */

static banyan_status check(void *argument)
{
    const device_state *state = argument;
    int rank = banyan_world_rank(state->world);
    courier_report report;
    state->ops->check(state->courier, &report);
    switch (report.verdict) {
    case COURIER_FINE:
        return BANYAN_OK;
    case COURIER_LATE:
        return error_set(BANYAN_ERR_TIMEOUT, "pipeline: rank %d waited %.1f s for a %s rank %d",
                         rank, (double)report.waited_ns / (double)NS_PER_S,
                         report.for_arrival ? "batch from" : "slot of", report.peer);
    case COURIER_SPOILT:
        return error_set(BANYAN_ERR_ABORTED,
                         "pipeline: rank %d got no batch from rank %d, whose run has failed", rank,
                         report.peer);
    case COURIER_STOPPED:
        break;
    }
    RETURN_IF_FAILED(banyan_world_check(state->world));
    return error_set(BANYAN_ERR_ABORTED,
                     "pipeline: an earlier run on this service of rank %d ended in the middle",
                     rank);
}

static banyan_status execute(void *argument, void *work, void *stream)
{
    const device_state *state = argument;
    RETURN_IF_FAILED(check(argument));
    return state->ops->run(work, stream);
}

const banyan_copy_backend copy_backend_pipeline_device = {
    .size = sizeof(banyan_copy_backend),
    .name = "pipeline",
    .capabilities = BANYAN_COPY_STRIDED | BANYAN_COPY_MATCH_BY_ORDER | BANYAN_COPY_KEEPS_SCHEDULES,
    .open = state_open,
    .close = state_close,
    .prepare = prepare,
    .execute = execute,
    .release = release,
    .check = check,
};
