/* Launches of a program. */
#include <string.h>

#include "cuda/execute/engine.h"

void engine_was_launched(cuda_engine *engine)
{
    atomic_fetch_add(&engine->launches, 1);
    if (atomic_load(&engine->busy))
        return;
    pthread_mutex_lock(&engine->lock);
    atomic_store(&engine->busy, true);
    pthread_cond_broadcast(&engine->wake);
    pthread_mutex_unlock(&engine->lock);
    watch_wake(engine->watching);
}

static void fill_args(const cuda_program *program, const engine_run *run, kernel_args *args)
{
    const cuda_plan *plan = program->plan;
    const cuda_engine *engine = plan->engine;
    *args = (kernel_args){
        .scratch_half = plan->shape.scratch_half,
        .sections = (const char *)program->address,
        .section_bytes = program->section_bytes,
        .flags = program->flags,
        .states = (kernel_state *)plan_at(plan, plan->layout.states, 0),
        .broken = (uint32_t *)plan_at(plan, plan->layout.broken, 0),
        .reports = plan->reports,
        .timeout_ns = engine->timeout_ns,
        .barriers = (uint64_t *)plan_at(plan, plan->layout.barriers, 0),
        .barrier_count = plan->shape.barrier_count,
        .semaphore_count = plan->shape.semaphore_count,
        .semaphores = (uint64_t *)plan_at(plan, plan->layout.semaphores, 0),
        .semaphore_starts = (const uint64_t *)plan_at(plan, plan->layout.semaphore_starts, 0),
        .copy_in_to = run->copy_in_to,
        .copy_in_from = run->copy_in_from,
        .copy_in_bytes = run->copy_in_bytes,
        .copy_out_to = run->copy_out_to,
        .copy_out_from = run->copy_out_from,
        .spans = (const engine_span *)program->spans,
        .span_count = program->span_count,
        .tracer = engine->traces ? (kernel_tracer *)engine->tracer : NULL,
        .loaded = (uint64_t)(uintptr_t)plan,
        .uploaded = (uint64_t)(uintptr_t)program,
    };
    memcpy(args->bases, run->bases, (size_t)plan->shape.ranks * 3 * sizeof *run->bases);
    memcpy(args->bases + ENGINE_GROUP_BASES, run->group_bases,
           ENGINE_GROUPS_MAX * 3 * sizeof *run->group_bases);
}

static CUfunction kernel_for(const cuda_program *program, const kernel_args *args)
{
    if (!program->smaller_kernel || args->copy_in_to || args->copy_out_to || args->tracer)
        return program->kernel;
    uintptr_t bases = 0;
    for (int i = 0; i < program->plan->shape.ranks * 3; i++)
        bases |= (uintptr_t)args->bases[i];
    return (bases | args->scratch_half) % KERNEL_ALIGNMENT == 0 ? program->smaller_kernel
                                                                : program->kernel;
}

/* Set the fields that only one launch of a run has. */
static void take_part(kernel_args *args, const program_part *part)
{
    args->first_step = part->first_step;
    args->end_step = part->end_step;
    args->goes_on = !part->is_last;
    if (!part->is_first)
        args->copy_in_to = NULL;
    if (!part->is_last) {
        args->copy_out_to = NULL;
        args->semaphore_count = 0;
    }
}

const uint32_t *program_broken(const cuda_program *program)
{
    return (const uint32_t *)plan_at(program->plan, program->plan->layout.broken, 0);
}

/* The kernel may begin while the previous one in its stream still runs: it fetches its program,
 * then waits for the previous one (begin_wait_for_stream). */
banyan_status program_launch(const cuda_program *program, const engine_run *run,
                             const program_part *part, CUstream stream)
{
    const cuda_plan *plan = program->plan;
    int device = plan->engine->device;
    kernel_args args;
    fill_args(program, run, &args);
    take_part(&args, part);
    launch_shape by = {
        .blocks = plan->shape.block_count,
        .threads = program->threads,
        .shared_bytes = program->shared_bytes,
        .early = part->is_first &&
                 launch_is_early(LAUNCH_PLANS, device, plan->shape.block_count, program->room),
    };
    return launch_kernel(device, kernel_for(program, &args), by, &args, stream);
}
