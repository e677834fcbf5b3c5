#include "cuda/execute/engine.h"

#include <stdlib.h>

#include "cuda/execute/small_kernels.h"
#include "cuda/execute/stages.h"

struct cuda_staged {
    stages *all;
    CUdeviceptr counters; /* at peers, for all signals */
    CUfunction signal;
    CUevent *signalled; /* indexed by stage */
};

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

static banyan_status staged_open_streams(cuda_engine *engine)
{
    int device = engine->device;
    if (engine->copies_done)
        return BANYAN_OK;
    RETURN_IF_FAILED(DRIVER(device, cuStreamCreate, &engine->copier, CU_STREAM_NON_BLOCKING));
    RETURN_IF_FAILED(DRIVER(device, cuStreamCreate, &engine->signaller, CU_STREAM_NON_BLOCKING));
    RETURN_IF_FAILED(DRIVER(device, cuEventCreate, &engine->kernel_done, CU_EVENT_DISABLE_TIMING));
    return DRIVER(device, cuEventCreate, &engine->copies_done, CU_EVENT_DISABLE_TIMING);
}

static banyan_status open_queue(const cuda_plan *plan, cuda_staged *made)
{
    int device = plan->engine->device;
    RETURN_IF_FAILED(staged_open_streams(plan->engine));
    RETURN_IF_FAILED(driver_kernel(signal_kernel(), device, &made->signal));
    for (uint32_t i = 0; i < made->all->count; i++) {
        if (!made->all->list[i].is_kernel)
            RETURN_IF_FAILED(
                DRIVER(device, cuEventCreate, &made->signalled[i], CU_EVENT_DISABLE_TIMING));
    }
    return BANYAN_OK;
}

static banyan_status staged_fill(const cuda_plan *plan, cuda_staged *made)
{
    driver_capture before;
    made->signalled = calloc(made->all->count, sizeof *made->signalled);
    if (!made->signalled)
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
    banyan_status status = staged_fill(plan, new);
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
    if (old->signalled && engine_enter(plan->engine, &before) == BANYAN_OK) {
        for (uint32_t i = 0; i < old->all->count; i++) {
            if (old->signalled[i])
                driver.cuEventDestroy(old->signalled[i]);
        }
        engine_leave(before);
    }
    free(old->signalled);
    stages_free(old->all);
    free(old);
}

void staged_end(cuda_engine *engine)
{
    driver_capture before;
    if (engine_enter(engine, &before) != BANYAN_OK)
        return;
    const CUstream streams[] = {engine->copier, engine->signaller};
    const CUevent events[] = {engine->kernel_done, engine->copies_done};
    for (int i = 0; i < 2; i++) {
        if (streams[i])
            driver.cuStreamDestroy(streams[i]);
        if (events[i])
            driver.cuEventDestroy(events[i]);
    }
    engine_leave(before);
}

/* Copies have their own stream, and signals of finished copies another, so that no copy engine
 * idles meanwhile. One stream serves all peers: a device copies to its peers with one engine, and
 * when two devices write to a third at once, all lose bandwidth. Ranks that share a device share
 * its few queues, too; they use only the caller's stream, so that no stream blocks another. */
typedef struct queued_stages {
    const cuda_program *program;
    const cuda_engine *engine;
    const cuda_staged *of;
    const engine_run *run;
    CUstream stream, copier, signaller;
    bool is_forked;     /* three streams are in use */
    bool is_behind;     /* the copier has waited for all kernels so far */
    uint32_t signalled; /* the latest stage that the caller's stream has waited for */
} queued_stages;

static banyan_status wait_for_copies(queued_stages *q, uint32_t after)
{
    if (!q->is_forked || after == STAGE_NONE ||
        (q->signalled != STAGE_NONE && after <= q->signalled))
        return BANYAN_OK;
    q->signalled = after;
    return DRIVER(q->engine->device, cuStreamWaitEvent, q->stream, q->of->signalled[after], 0);
}

static banyan_status queue_kernel(queued_stages *q, uint32_t index)
{
    const stage *s = &q->of->all->list[index];
    program_part part = {.first_step = s->first_step,
                         .end_step = s->end_step,
                         .is_first = index == 0,
                         .is_last = index + 1 == q->of->all->count};
    RETURN_IF_FAILED(wait_for_copies(q, s->after));
    RETURN_IF_FAILED(program_launch(q->program, q->run, &part, q->stream));
    q->is_behind = false;
    return BANYAN_OK;
}

static banyan_status follow_kernels(queued_stages *q)
{
    int device = q->engine->device;
    if (!q->is_forked || q->is_behind)
        return BANYAN_OK;
    q->is_behind = true;
    RETURN_IF_FAILED(DRIVER(device, cuEventRecord, q->engine->kernel_done, q->stream));
    return DRIVER(device, cuStreamWaitEvent, q->copier, q->engine->kernel_done, 0);
}

static banyan_status follow_copies(const queued_stages *q)
{
    int device = q->engine->device;
    if (!q->is_forked)
        return BANYAN_OK;
    RETURN_IF_FAILED(DRIVER(device, cuEventRecord, q->engine->copies_done, q->copier));
    return DRIVER(device, cuStreamWaitEvent, q->signaller, q->engine->copies_done, 0);
}

static banyan_status staged_signal(const queued_stages *q, const stage *s)
{
    if (s->signal_count == 0 || s->is_signalled)
        return BANYAN_OK;
    signal_args args = {
        .counters = (uint64_t *const *)q->of->counters + s->first_signal,
        .count = s->signal_count,
        .broken = program_broken(q->program),
    };
    uint32_t most = q->engine->most_threads;
    launch_shape by = {.blocks = 1, .threads = most < SIGNAL_THREADS ? most : SIGNAL_THREADS};
    return launch_kernel(q->engine->device, q->of->signal, by, &args, q->signaller);
}

static banyan_status staged_queue_copy(const queued_stages *q, const stage_copy *copy)
{
    CUdeviceptr to = (CUdeviceptr)(q->run->bases[copy->to_base] + copy->to);
    CUdeviceptr from = (CUdeviceptr)(q->run->bases[copy->from_base] + copy->from);
    if (copy->rows == 1)
        return DRIVER(q->engine->device, cuMemcpyAsync, to, from, copy->bytes, q->copier);
    CUDA_MEMCPY2D rows = {
        .srcMemoryType = CU_MEMORYTYPE_UNIFIED,
        .srcDevice = from,
        .srcPitch = copy->from_pitch,
        .dstMemoryType = CU_MEMORYTYPE_UNIFIED,
        .dstDevice = to,
        .dstPitch = copy->to_pitch,
        .WidthInBytes = copy->bytes,
        .Height = copy->rows,
    };
    return DRIVER(q->engine->device, cuMemcpy2DAsync, &rows, q->copier);
}

static banyan_status queue_copies(queued_stages *q, uint32_t index)
{
    const stage *s = &q->of->all->list[index];
    int device = q->engine->device;
    RETURN_IF_FAILED(follow_kernels(q));
    for (uint32_t i = 0; i < s->copy_count; i++)
        RETURN_IF_FAILED(staged_queue_copy(q, &q->of->all->copies[s->first_copy + i]));
    RETURN_IF_FAILED(follow_copies(q));
    RETURN_IF_FAILED(staged_signal(q, s));
    return q->is_forked ? DRIVER(device, cuEventRecord, q->of->signalled[index], q->signaller)
                        : BANYAN_OK;
}

banyan_status staged_queue(const cuda_program *program, const engine_run *run, CUstream stream)
{
    const cuda_engine *engine = program->plan->engine;
    bool forks = launch_has_device(LAUNCH_PLANS, engine->device);
    queued_stages q = {.program = program,
                       .engine = engine,
                       .of = program->staged,
                       .run = run,
                       .stream = stream,
                       .copier = forks ? engine->copier : stream,
                       .signaller = forks ? engine->signaller : stream,
                       .is_forked = forks,
                       .signalled = STAGE_NONE};
    for (uint32_t i = 0; i < q.of->all->count; i++)
        RETURN_IF_FAILED((q.of->all->list[i].is_kernel ? queue_kernel : queue_copies)(&q, i));
    return BANYAN_OK;
}
