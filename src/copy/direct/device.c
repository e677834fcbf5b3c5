#include "copy/service/backends.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "copy/direct/gpu_copy.h"
#include "copy/direct/plan.h"
#include "copy/match/match.h"
#include "copy/service/device.h"

#define LINE_BYTES 64

/* Signals from a peer, at the peer's index on the node; only that peer writes here. */
typedef struct device_counters {
    uint64_t entered;
    char entered_padding[LINE_BYTES - sizeof(uint64_t)];
    uint64_t finished;
    char finished_padding[LINE_BYTES - sizeof(uint64_t)];
} device_counters;

typedef struct direct_device_state {
    banyan_world *world;
    control_timeout timeout;
    const copy_gpu_copy_ops *ops;
    void *gpu_copy;
    DLDevice device;
    banyan_memory *counters; /* one per local rank, on the device */
} direct_device_state;

typedef struct device_schedule {
    direct_plan *plan;
    gpu_copy_lane *lanes;
    gpu_copy_lane landed; /* from the landing to the receive buffers */
    void *work, *landing;
} device_schedule;

static void direct_device_state_close(void *argument)
{
    direct_device_state *state = argument;
    if (state->gpu_copy)
        state->ops->close(state->gpu_copy);
    banyan_memory_free(state->counters);
    free(state);
}

static banyan_status find_gpu_copy(DLDevice device, const memory_device_ops **memory,
                                   const copy_gpu_copy_ops **ops)
{
    const module_tables *tables;
    RETURN_IF_FAILED(copy_device_find(device, memory, &tables));
    if (!tables->gpu_copy)
        return error_set(BANYAN_ERR_UNSUPPORTED, "module %s cannot move tensors between devices",
                         tables->name);
    *ops = tables->gpu_copy;
    return BANYAN_OK;
}

static banyan_status direct_device_open_shared(direct_device_state *state, DLDevice device)
{
    const memory_device_ops *memory = NULL;
    int sharers;
    RETURN_IF_FAILED(copy_agree(state->world, find_gpu_copy(device, &memory, &state->ops)));
    RETURN_IF_FAILED(copy_device_sharers(state->world, memory, device.device_id, &sharers));
    size_t bytes = (size_t)banyan_world_local_size(state->world) * sizeof(device_counters);
    RETURN_IF_FAILED(banyan_memory_alloc_on(state->world, device, bytes, &state->counters));
    return copy_agree(state->world,
                      state->ops->open(state->world, device.device_id, sharers,
                                       banyan_world_timeout_ns(state->world), &state->gpu_copy));
}

static banyan_status direct_device_state_open(banyan_world *world,
                                              const banyan_copy_options *options, void **opened)
{
    void *memory;
    RETURN_IF_FAILED(
        copy_alloc_on_all(world, sizeof(direct_device_state), "a copy backend", &memory));
    direct_device_state *state = memory;
    state->world = world;
    state->timeout = control_timeout_now(world);
    state->device = options->device;
    banyan_status status = direct_device_open_shared(state, options->device);
    if (status == BANYAN_OK)
        *opened = state;
    else
        direct_device_state_close(state);
    return status;
}

static banyan_status partner_lane(const direct_device_state *state, const direct_partner *partner,
                                  gpu_copy_lane *lane)
{
    void *far;
    size_t bytes;
    RETURN_IF_FAILED(banyan_memory_peer(state->counters, partner->peer, &far, &bytes));
    device_counters *mine = banyan_memory_local(state->counters), *theirs = far;
    mine += direct_local_rank(state->world, partner->peer);
    theirs += banyan_world_local_rank(state->world);
    *lane = (gpu_copy_lane){
        .peer = partner->peer,
        .receives = partner->in.bytes > 0,
        .moves = &partner->out.own,
        .my_entered = &mine->entered,
        .their_entered = &theirs->entered,
        .my_finished = &mine->finished,
        .their_finished = &theirs->finished,
    };
    return BANYAN_OK;
}

static banyan_status direct_device_fill_schedule(const direct_device_state *state,
                                                 device_schedule *schedule)
{
    const direct_plan *plan = schedule->plan;
    size_t count = plan->partner_count;
    RETURN_IF_NO_MEMORY(schedule->lanes = alloc_zeroed(count + 1, sizeof *schedule->lanes,
                                                       "the lanes of a schedule"));
    for (size_t i = 0; i < count; i++)
        RETURN_IF_FAILED(partner_lane(state, &plan->partners[i], &schedule->lanes[i]));
    if (plan->local.bytes > 0)
        schedule->lanes[count++] =
            (gpu_copy_lane){.peer = banyan_world_rank(state->world), .moves = &plan->local};
    RETURN_IF_FAILED(state->ops->prepare(state->gpu_copy, schedule->lanes, count, &schedule->work));
    if (plan->places.landed.bytes == 0)
        return BANYAN_OK;
    schedule->landed =
        (gpu_copy_lane){.peer = banyan_world_rank(state->world), .moves = &plan->places.landed};
    return state->ops->prepare(state->gpu_copy, &schedule->landed, 1, &schedule->landing);
}

static void direct_device_release(void *argument, void *planned)
{
    const direct_device_state *state = argument;
    device_schedule *schedule = planned;
    if (schedule->work)
        state->ops->release(schedule->work);
    if (schedule->landing)
        state->ops->release(schedule->landing);
    direct_plan_destroy(schedule->plan);
    free(schedule->lanes);
    free(schedule);
}

static banyan_status direct_device_prepare(void *argument, const banyan_copy_batch *batch,
                                           void **planned)
{
    const direct_device_state *state = argument;
    direct_plan *plan;
    RETURN_IF_FAILED(direct_plan_create_on_device(state->world, state->device, batch, &plan));
    device_schedule *schedule = calloc(1, sizeof *schedule);
    banyan_status status = BANYAN_OK;
    if (schedule) {
        schedule->plan = plan;
        status = direct_device_fill_schedule(state, schedule);
    } else {
        direct_plan_destroy(plan);
        status = error_no_memory(sizeof *schedule, "a schedule");
    }
    return copy_keep_on_all(state->world, status, schedule, direct_device_release, argument,
                            planned);
}

static banyan_status direct_device_check(void *argument)
{
    const direct_device_state *state = argument;
    device_report report;
    char lacks[80];
    state->ops->check(state->gpu_copy, &report);
    snprintf(lacks, sizeof lacks, "rank %d to %s", device_report_rank(&report),
             device_report_own(&report) ? "finish its part of a run" : "enter the run");
    return copy_device_status(state->world, "direct", state->timeout, &report, lacks);
}

static banyan_status direct_device_execute(void *argument, void *planned, void *stream)
{
    const direct_device_state *state = argument;
    const device_schedule *schedule = planned;
    RETURN_IF_FAILED(direct_device_check(argument));
    RETURN_IF_FAILED(state->ops->run(schedule->work, stream));
    /* In stream order: the next write to the landing waits for this rank's next run. */
    return schedule->landing ? state->ops->run(schedule->landing, stream) : BANYAN_OK;
}

const banyan_copy_backend copy_backend_direct_device = {
    .size = sizeof(banyan_copy_backend),
    .name = "direct",
    .capabilities = BANYAN_COPY_STRIDED | BANYAN_COPY_MATCH_BY_ORDER | BANYAN_COPY_KEEPS_SCHEDULES |
                    BANYAN_COPY_CASTS,
    .open = direct_device_state_open,
    .close = direct_device_state_close,
    .prepare = direct_device_prepare,
    .execute = direct_device_execute,
    .release = direct_device_release,
    .check = direct_device_check,
};
