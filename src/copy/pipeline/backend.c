#include "copy/pipeline/backend.h"

#include <stdlib.h>

#include "copy/match/match.h"
#include "copy/pipeline/executor.h"
#include "copy/pipeline/host.h"
#include "copy/schedule/plan.h"
#include "copy/strided/strided.h"
#include "core/error.h"

typedef struct backend_state {
    banyan_world *world;
    banyan_transport *transport;
    banyan_pipeline_buffers *buffers;
    banyan_pipeline_launcher launcher;
    banyan_pipeline *pipeline;
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

/* Moves within the rank come last: partners wait for the rest. */
static banyan_status backend_execute(void *context, void *prepared, void *stream)
{
    (void)stream;
    backend_state *state = context;
    const pipeline_schedule *schedule = prepared;
    state->past_caches = schedule->recv_bytes >= STRIDED_STREAMING_BYTES;
    RETURN_IF_FAILED(
        pipeline_run(state->pipeline, schedule->iterations, schedule->iteration_count));
    return pipeline_move_pairs(state->pipeline, schedule->sends, schedule->recvs, schedule->local,
                               schedule->local_count);
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
