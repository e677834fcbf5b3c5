#include "cuda/execute/staged.h"

#include <stdlib.h>

#include "cuda/execute/stages.h"
#include "cuda/execute/tell.h"

struct cuda_staged {
    stages *all;
    CUdeviceptr counters; /* at peers, of all signals */
    CUfunction tell;
    CUevent *told; /* by stage */
};

/* ---- programs ---- */

static banyan_status send_counters(const cuda_plan *plan, cuda_staged *made)
{
    uint32_t count = made->all->signal_count;
    uint64_t **counters = calloc(count + 1, sizeof *counters);
    if (!counters)
        return banyan_error_set(BANYAN_ERR_NO_MEMORY, "cuda: no memory for a program");
    for (uint32_t i = 0; i < count; i++)
        counters[i] = plan->ends[made->all->signals[i]].outgoing;
    banyan_status status =
        engine_take(plan->engine, (count + 1) * sizeof *counters, &made->counters);
    if (status == BANYAN_OK)
        status = engine_copy(plan->engine, made->counters, (CUdeviceptr)counters,
                             (count + 1) * sizeof *counters);
    free(counters);
    return status;
}

static banyan_status open_lanes(cuda_engine *engine)
{
    int device = engine->device;
    if (engine->kernel_done)
        return BANYAN_OK;
    for (int i = 0; i < ENGINE_LANES; i++) {
        RETURN_IF_FAILED(DRIVER(device, cuStreamCreate, &engine->lanes[i], CU_STREAM_NON_BLOCKING));
        RETURN_IF_FAILED(
            DRIVER(device, cuEventCreate, &engine->lane_done[i], CU_EVENT_DISABLE_TIMING));
    }
    RETURN_IF_FAILED(DRIVER(device, cuStreamCreate, &engine->teller, CU_STREAM_NON_BLOCKING));
    return DRIVER(device, cuEventCreate, &engine->kernel_done, CU_EVENT_DISABLE_TIMING);
}

static banyan_status open_queue(const cuda_plan *plan, cuda_staged *made)
{
    int device = plan->engine->device;
    RETURN_IF_FAILED(open_lanes(plan->engine));
    RETURN_IF_FAILED(driver_kernel(tell_kernel(), device, &made->tell));
    for (uint32_t i = 0; i < made->all->count; i++) {
        if (!made->all->list[i].is_kernel)
            RETURN_IF_FAILED(
                DRIVER(device, cuEventCreate, &made->told[i], CU_EVENT_DISABLE_TIMING));
    }
    return BANYAN_OK;
}

static banyan_status fill(const cuda_plan *plan, cuda_staged *made)
{
    driver_capture before;
    made->told = calloc(made->all->count, sizeof *made->told);
    if (!made->told)
        return banyan_error_set(BANYAN_ERR_NO_MEMORY, "cuda: no memory for a program");
    RETURN_IF_FAILED(send_counters(plan, made));
    RETURN_IF_FAILED(engine_enter(plan->engine, &before));
    banyan_status status = open_queue(plan, made);
    engine_leave(before);
    return status;
}

banyan_status staged_make(const cuda_plan *plan, const engine_program *fused, cuda_staged **made)
{
    stages *all;
    *made = NULL;
    RETURN_IF_FAILED(stages_make(fused, &plan->shape, &all));
    if (!all)
        return BANYAN_OK;
    cuda_staged *new = calloc(1, sizeof *new);
    if (!new) {
        stages_free(all);
        return banyan_error_set(BANYAN_ERR_NO_MEMORY, "cuda: no memory for a program");
    }
    new->all = all;
    banyan_status status = fill(plan, new);
    if (status == BANYAN_OK)
        *made = new;
    else
        staged_free(plan, new);
    return status;
}

void staged_free(const cuda_plan *plan, cuda_staged *old)
{
    driver_capture before;
    if (!old)
        return;
    engine_give_back(plan->engine, old->counters);
    if (old->told && engine_enter(plan->engine, &before) == BANYAN_OK) {
        for (uint32_t i = 0; i < old->all->count; i++) {
            if (old->told[i])
                driver.cuEventDestroy(old->told[i]);
        }
        engine_leave(before);
    }
    free(old->told);
    stages_free(old->all);
    free(old);
}

void staged_end(cuda_engine *engine)
{
    driver_capture before;
    if (engine_enter(engine, &before) != BANYAN_OK)
        return;
    for (int i = 0; i < ENGINE_LANES; i++) {
        if (engine->lanes[i])
            driver.cuStreamDestroy(engine->lanes[i]);
        if (engine->lane_done[i])
            driver.cuEventDestroy(engine->lane_done[i]);
    }
    if (engine->teller)
        driver.cuStreamDestroy(engine->teller);
    if (engine->kernel_done)
        driver.cuEventDestroy(engine->kernel_done);
    engine_leave(before);
}

/* ---- runs ---- */

/* Copies go in lanes of their own, and what is told of them in another stream, so that no engine
 * stands still meanwhile. Ranks that share a device share its few queues, too: with the caller's
 * stream alone none stands in front of another. */
typedef struct queued {
    const cuda_program *program;
    const cuda_engine *engine;
    const cuda_staged *of;
    const engine_run *run;
    CUstream stream, teller, lanes[ENGINE_LANES];
    uint32_t lane_count;
    uint32_t kernels;              /* so far */
    uint32_t behind[ENGINE_LANES]; /* as many of them has the lane waited for */
    uint32_t told;                 /* the latest stage that the caller's stream has waited for */
} queued;

static banyan_status queue_kernel(queued *q, uint32_t index)
{
    const stage *s = &q->of->all->list[index];
    program_part part = {.first_step = s->first_step,
                         .end_step = s->end_step,
                         .is_first = index == 0,
                         .is_last = index + 1 == q->of->all->count};
    if (s->after != STAGE_NONE && q->teller != q->stream &&
        (q->told == STAGE_NONE || s->after > q->told)) {
        RETURN_IF_FAILED(
            DRIVER(q->engine->device, cuStreamWaitEvent, q->stream, q->of->told[s->after], 0));
        q->told = s->after;
    }
    RETURN_IF_FAILED(program_launch(q->program, q->run, &part, q->stream));
    q->kernels++;
    return q->teller == q->stream
               ? BANYAN_OK
               : DRIVER(q->engine->device, cuEventRecord, q->engine->kernel_done, q->stream);
}

/* With the lane behind all kernels so far. */
static banyan_status enter_lane(queued *q, uint32_t lane)
{
    if (q->lanes[lane] == q->stream || q->behind[lane] == q->kernels)
        return BANYAN_OK;
    q->behind[lane] = q->kernels;
    return DRIVER(q->engine->device, cuStreamWaitEvent, q->lanes[lane], q->engine->kernel_done, 0);
}

static banyan_status leave_lane(const queued *q, uint32_t lane)
{
    int device = q->engine->device;
    if (q->lanes[lane] == q->stream)
        return BANYAN_OK;
    RETURN_IF_FAILED(DRIVER(device, cuEventRecord, q->engine->lane_done[lane], q->lanes[lane]));
    return DRIVER(device, cuStreamWaitEvent, q->teller, q->engine->lane_done[lane], 0);
}

static banyan_status tell(const queued *q, const stage *s)
{
    if (s->signal_count == 0)
        return BANYAN_OK;
    tell_args args = {
        .counters = (uint64_t *const *)q->of->counters + s->first_signal,
        .count = s->signal_count,
        .broken = program_broken(q->program),
    };
    uint32_t most = q->engine->most_threads;
    void *params[] = {&args};
    return DRIVER(q->engine->device, cuLaunchKernel, q->of->tell, 1, 1, 1,
                  most < TELL_THREADS ? most : TELL_THREADS, 1, 1, 0, q->teller, params, NULL);
}

static banyan_status queue_copies(queued *q, uint32_t index)
{
    const stage *s = &q->of->all->list[index];
    int device = q->engine->device;
    for (uint32_t i = 0; i < s->copy_count; i++) {
        const stage_copy *copy = &q->of->all->copies[s->first_copy + i];
        uint32_t lane = i % q->lane_count;
        RETURN_IF_FAILED(enter_lane(q, lane));
        RETURN_IF_FAILED(DRIVER(device, cuMemcpyAsync,
                                (CUdeviceptr)(q->run->bases[copy->to_base] + copy->to),
                                (CUdeviceptr)(q->run->bases[copy->from_base] + copy->from),
                                copy->bytes, q->lanes[lane]));
    }
    if (s->copy_count == 0)
        RETURN_IF_FAILED(enter_lane(q, 0));
    for (uint32_t lane = 0; lane < q->lane_count && (lane == 0 || lane < s->copy_count); lane++)
        RETURN_IF_FAILED(leave_lane(q, lane));
    RETURN_IF_FAILED(tell(q, s));
    return q->teller == q->stream ? BANYAN_OK
                                  : DRIVER(device, cuEventRecord, q->of->told[index], q->teller);
}

banyan_status staged_queue(const cuda_program *program, const engine_run *run, CUstream stream)
{
    const cuda_engine *engine = program->plan->engine;
    queued q = {.program = program,
                .engine = engine,
                .of = program->staged,
                .run = run,
                .stream = stream,
                .teller = stream,
                .lanes = {stream},
                .lane_count = 1,
                .told = STAGE_NONE};
    if (engine_is_alone(engine)) {
        q.lane_count = ENGINE_LANES;
        q.teller = engine->teller;
        for (int i = 0; i < ENGINE_LANES; i++)
            q.lanes[i] = engine->lanes[i];
    }
    for (uint32_t i = 0; i < q.of->all->count; i++)
        RETURN_IF_FAILED((q.of->all->list[i].is_kernel ? queue_kernel : queue_copies)(&q, i));
    return BANYAN_OK;
}
