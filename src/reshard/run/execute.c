#include "reshard/run/execute.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "core/threads/thread.h"
#include "memory/device.h"
#include "reshard/layout/fill.h"
#include "reshard/run/tensors.h"
#include "world/control.h"

static banyan_status finish_paddings(const execution *run, const banyan_transform *transform)
{
    const banyan_layout *layout = run->plan->destination;
    for (size_t i = 0; i < banyan_layout_padding_count(layout); i++) {
        int tensor;
        banyan_layout_padding(layout, i, &tensor);
        RETURN_IF_FAILED(transform->finish_padding(
            transform->context, banyan_layout_tensor(layout, (size_t)tensor)->name,
            banyan_tensors_get(run->destination, (size_t)tensor)));
    }
    return BANYAN_OK;
}

static banyan_status finish_run(const execution *run)
{
    const banyan_transform *transform = run->transform;
    if (!device_is_host(run->device))
        return BANYAN_OK; /* nothing has arrived yet */
    for (size_t i = 0; i < run->paddings.count; i++)
        padding_fill(&run->paddings.data[i], banyan_layout_padding_fill(run->plan->destination, i));
    if (transform && transform->size > offsetof(banyan_transform, finish_padding) &&
        transform->finish_padding)
        RETURN_IF_FAILED(finish_paddings(run, transform));
    return transform && transform->finish ? transform->finish(transform->context) : BANYAN_OK;
}

/* Between waves of stages that have schedules, ranks synchronize with their partners only, and a
 * rank that fails goes on: its partners take part. */
static bool waves_follow_alone(const execution *run, const execution_wave *wave)
{
    return run->plan->max_staging_bytes == 0 && wave->schedule && wave[1].schedule;
}

banyan_status execution_run(execution *run)
{
    const banyan_transform *transform = run->transform;
    banyan_status status = BANYAN_OK;
    if (transform && transform->begin)
        status = transform->begin(transform->context);
    for (size_t w = 0; w < run->waves.count; w++) {
        bool agreed, is_last = w == run->waves.count - 1;
        bool goes_on = !is_last && waves_follow_alone(run, &run->waves.data[w]);
        status = execution_run_wave(run, &run->waves.data[w], status, &agreed);
        if (status == BANYAN_OK && is_last)
            status = finish_run(run);
        if (goes_on)
            continue;
        if (!agreed)
            status = control_agree(run->world, status);
        if (status != BANYAN_OK)
            return status;
    }
    return BANYAN_OK;
}

typedef struct job {
    banyan_reshard_plan *plan;
    banyan_tensors *source, *destination;
    banyan_copy_service *service;
    banyan_world *world;
    const banyan_transform *transform;
    void *stream;
    bool has_entered; /* all ranks have entered: from here on the destination changes */
} job;

static banyan_status check_job(const job *of)
{
    const banyan_reshard_plan *plan = of->plan;
    if (banyan_world_rank(of->world) != plan->rank ||
        banyan_world_size(of->world) != plan->world_size)
        return error_set(BANYAN_ERR_INVALID,
                         "rank %d of %d ranks runs a plan that was made as rank %d of %d",
                         banyan_world_rank(of->world), banyan_world_size(of->world), plan->rank,
                         plan->world_size);
    RETURN_IF_FAILED(tensors_check(of->source, plan->source, "source"));
    return tensors_check(of->destination, plan->destination, "destination");
}

static bool is_kept(const job *of)
{
    const execution *kept = of->plan->execution;
    return kept && kept->service == of->service && kept->world == of->world &&
           kept->transform == of->transform &&
           kept->source_id == (of->source ? tensors_id(of->source) : 0) &&
           kept->destination_id == (of->destination ? tensors_id(of->destination) : 0);
}

/* The word that ranks exchange before a run; the largest decides: one cannot start, one must
 * prepare again, or else the newest version. */
#define JOB_REFUSED (UINT64_C(1) << 63)
#define JOB_PREPARES (UINT64_C(1) << 62)
#define JOB_VERSION (JOB_PREPARES - 1)

/* The word carries the version, unless a rank prepares: then the version takes another round. */
static banyan_status prepare_job(const job *of, uint64_t version, uint64_t *newest)
{
    banyan_reshard_plan_release(of->plan);
    RETURN_IF_FAILED(control_max(of->world, version, newest));
    return execution_build(of->plan, of->source, of->destination, of->service, of->world,
                           of->transform, &of->plan->execution);
}

/* Enter the gate. Until all ranks have entered, nothing of the destination changes. */
static banyan_status enter_job(const job *of, banyan_status mine, uint64_t version, uint64_t *most)
{
    uint64_t word = version;
    if (!is_kept(of))
        word |= JOB_PREPARES;
    if (mine != BANYAN_OK)
        word |= JOB_REFUSED;
    return control_enter_max(of->world, word, most);
}

static banyan_status move_job(const job *of, banyan_status mine, uint64_t version, uint64_t most,
                              uint64_t *newest)
{
    if (most & JOB_REFUSED)
        return control_agree(of->world, mine);
    *newest = most;
    if (most & JOB_PREPARES)
        RETURN_IF_FAILED(prepare_job(of, version, newest));
    of->plan->execution->stream = of->stream;
    return execution_run(of->plan->execution);
}

static banyan_status execute_run_job(job *of)
{
    CONTROL_CALL_WITHIN(of->world, "a reshard run", of->plan->timeout);
    banyan_status mine = check_job(of);
    uint64_t version = of->destination ? banyan_tensors_version(of->destination) & JOB_VERSION : 0;
    uint64_t newest, most;
    banyan_status status = enter_job(of, mine, version, &most);
    if (status == BANYAN_ERR_TIMEOUT)
        return status;
    of->has_entered = true;
    if (mine == BANYAN_OK && of->destination)
        tensors_set_torn(of->destination);
    if (status == BANYAN_OK)
        status = move_job(of, mine, version, most, &newest);
    if (status != BANYAN_OK)
        banyan_reshard_plan_release(of->plan);
    else if (of->destination)
        tensors_set_whole(of->destination, newest + 1);
    return status;
}

static banyan_status job_of(banyan_reshard_plan *plan, banyan_tensors *source,
                            banyan_tensors *destination, banyan_copy_service *service,
                            banyan_world *world, const banyan_transform *transform, job *made)
{
    if (!plan || !service || !world)
        return error_set(BANYAN_ERR_INVALID, "a reshard run without a %s",
                         !plan      ? "plan"
                         : !service ? "copy service"
                                    : "world");
    *made = (job){plan, source, destination, service, world, transform, NULL, false};
    return BANYAN_OK;
}

banyan_status banyan_reshard_execute(banyan_reshard_plan *plan, banyan_tensors *source,
                                     banyan_tensors *destination, banyan_copy_service *service,
                                     banyan_world *world, const banyan_transform *transform,
                                     void *stream)
{
    job made;
    RETURN_IF_FAILED(job_of(plan, source, destination, service, world, transform, &made));
    made.stream = stream;
    return execute_run_job(&made);
}

/* A started run. Its destination is torn while it is in flight. */
typedef struct started_job {
    job of;
    bool marks;
    banyan_tensors_state before; /* of the destination, before it was marked torn */
} started_job;

static banyan_status execute_run_started(void *context)
{
    started_job started = *(started_job *)context;
    free(context);
    banyan_status status = execute_run_job(&started.of);
    if (status == BANYAN_ERR_TIMEOUT && !started.of.has_entered && started.marks)
        tensors_set_back(started.of.destination, started.before);
    return status;
}

banyan_status banyan_reshard_start(banyan_reshard_plan *plan, banyan_tensors *source,
                                   banyan_tensors *destination, banyan_copy_service *service,
                                   banyan_world *world, const banyan_transform *transform,
                                   banyan_request **request)
{
    job made;
    RETURN_IF_FAILED(job_of(plan, source, destination, service, world, transform, &made));
    started_job *started = malloc(sizeof *started);
    if (!started)
        return control_fail(world, error_no_memory(sizeof *started, "a request"));
    /* The run is in flight from now on, even before its thread begins. */
    bool marks = check_job(&made) == BANYAN_OK && destination;
    *started = (started_job){made, marks, BANYAN_TENSORS_TORN};
    if (marks) {
        started->before = banyan_tensors_get_state(destination);
        tensors_set_torn(destination);
    }
    banyan_status status = request_start(execute_run_started, started, request);
    if (status != BANYAN_OK)
        free(started);
    return control_fail(world, status); /* others may wait in their runs */
}
