/* Programs on the device, and their runs. */
#include "cuda/execute/engine.h"

#include <stdlib.h>
#include <string.h>

#include "cuda/execute/fuse.h"
#include "cuda/execute/pack.h"
/* Sections of this size or less are not reduced further. */
#define SECTION_LEAST 1024

/* Dynamic shared memory that a kernel may use without a request. */
#define SHARED_ALWAYS (48 << 10)

static void fill_channels(const cuda_plan *plan, bool staged, kernel_end *channels)
{
    uint32_t port = 0;
    for (uint32_t i = 0; i < plan->shape.end_count; i++) {
        const engine_end *end = &plan->ends[i];
        channels[i] = (kernel_end){
            .incoming = end->incoming,
            .outgoing = end->outgoing,
            .consumed = (uint64_t *)plan_at(plan, plan->layout.consumed, i),
        };
        if (end->is_port && !staged)
            channels[i].queue = (kernel_queue *)plan_at(plan, plan->layout.queues, port++);
    }
}

static void execute_run_fill_semaphores(const cuda_plan *plan, kernel_end *semaphores)
{
    uint32_t count = plan->shape.semaphore_count;
    for (uint32_t i = 0; i < count; i++)
        semaphores[i] = (kernel_end){
            .incoming = (uint64_t *)plan_at(plan, plan->layout.semaphores, i),
            .outgoing = (uint64_t *)plan_at(plan, plan->layout.semaphores, count + i),
        };
}

/* Bytes that a thread takes at a time, of packets' data. */
#define UNIT_BYTES 8
#define THREADS_LEAST 128
#define WARP 32

static uint64_t execute_run_bytes_of(const engine_program *from, uint64_t begin, uint64_t end,
                                     uint64_t words)
{
    uint64_t bytes = 0;
    for (uint64_t at = begin; at < end; at += words)
        bytes += from->words[at] & ~ENGINE_PAD;
    return bytes;
}

static const engine_step *loop_of(const engine_step *s)
{
    while (s->kind != STEP_LOOP)
        s--;
    return s;
}

/* Return the largest number of bytes that a step moves at once. */
static uint64_t step_bytes(const engine_program *from, const engine_step *s)
{
    uint64_t words = UINT64_C(1) + s->source_count + s->destination_count, most = 0;
    if (words == 1)
        return 0;
    if (!s->in_loop)
        return execute_run_bytes_of(from, s->words, s->words + s->piece_count * words, words);
    const uint64_t *at = &from->words[s->words];
    for (uint32_t i = 0; i < loop_of(s)->iterations; i++) {
        uint64_t bytes = execute_run_bytes_of(from, at[i], at[i + 1], words);
        most = bytes > most ? bytes : most;
    }
    return most;
}

/* A launch of large blocks takes longer: use no more threads than have work. */
static uint32_t threads_for(const engine_program *from, uint32_t most)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < from->step_count; i++) {
        uint64_t mine = step_bytes(from, &from->steps[i]);
        bytes = mine > bytes ? mine : bytes;
    }
    uint64_t threads = (bytes / UNIT_BYTES + WARP - 1) / WARP * WARP;
    threads = threads > THREADS_LEAST ? threads : THREADS_LEAST;
    return threads < most ? (uint32_t)threads : most;
}

static banyan_status allow_shared(const cuda_program *program)
{
    CUfunction kernels[] = {program->kernel, program->smaller_kernel};
    for (int i = 0; i < 2 && kernels[i]; i++)
        RETURN_IF_FAILED(DRIVER(program->plan->engine->device, cuFuncSetAttribute, kernels[i],
                                CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                (int)program->shared_bytes));
    return BANYAN_OK;
}

/* Use the largest sections with which all thread blocks run at once. */
static banyan_status execute_run_fit(cuda_program *program, const engine_program *from,
                                     pack_layout *layout)
{
    const cuda_plan *plan = program->plan;
    banyan_status status = BANYAN_OK;
    for (uint32_t most = KERNEL_SECTION_MOST; most >= SECTION_LEAST; most /= 2) {
        pack_plan(from, most, layout);
        program->section_bytes = layout->section_bytes;
        program->shared_bytes = execute_shared_bytes(layout->section_bytes);
        if (program->shared_bytes > SHARED_ALWAYS)
            RETURN_IF_FAILED(allow_shared(program));
        status = plan_check_room(plan, program->kernel, program->threads, program->shared_bytes,
                                 &program->room);
        if (status == BANYAN_OK)
            break;
    }
    return status;
}

static banyan_status execute_run_choose_kernel(cuda_program *program, const engine_program *from,
                                               pack_layout *layout)
{
    const cuda_engine *engine = program->plan->engine;
    driver_capture before;
    RETURN_IF_FAILED(engine_enter(engine, &before));
    kernel_kind kind = pack_kind(from, program->staged != NULL);
    banyan_status status =
        driver_kernel(execute_kernel(from->dtype, KERNEL_WHOLE), engine->device, &program->kernel);
    if (status == BANYAN_OK && kind != KERNEL_WHOLE)
        status = driver_kernel(execute_kernel(from->dtype, kind), engine->device,
                               &program->smaller_kernel);
    if (status == BANYAN_OK)
        status = execute_run_fit(program, from, layout);
    engine_leave(before);
    return status;
}

static banyan_status execute_run_send(cuda_program *program, const engine_program *from,
                                      const pack_layout *layout)
{
    const cuda_plan *plan = program->plan;
    uint64_t count = plan->shape.end_count + (uint64_t)plan->shape.semaphore_count;
    kernel_end *ends = calloc(count + 1, sizeof *ends);
    char *packed = malloc(layout->bytes);
    banyan_status status = BANYAN_OK;
    if (!ends || !packed) {
        status =
            banyan_error_set(BANYAN_ERR_NO_MEMORY, "cuda: no memory for a program of %llu bytes",
                             (unsigned long long)layout->bytes);
    } else {
        pack_ends with = {.channels = ends, .semaphores = ends + plan->shape.end_count};
        fill_channels(plan, program->staged, ends);
        execute_run_fill_semaphores(plan, ends + plan->shape.end_count);
        pack_write(from, &with, layout, program->address, packed);
        status = engine_copy(plan->engine, program->address, (CUdeviceptr)packed, layout->bytes);
    }
    free(packed);
    free(ends);
    return status;
}

/* A rank without thread blocks still makes the copies. */
static banyan_status keep_spans(cuda_program *program, const engine_program *from)
{
    program->host_spans = malloc((from->span_count + 1) * sizeof *program->host_spans);
    if (!program->host_spans)
        return banyan_error_set(BANYAN_ERR_NO_MEMORY, "cuda: no memory for a program");
    memcpy(program->host_spans, from->spans, from->span_count * sizeof *program->host_spans);
    return BANYAN_OK;
}

static banyan_status make_packed(cuda_program *program, const engine_program *from)
{
    pack_layout layout;
    RETURN_IF_FAILED(execute_run_choose_kernel(program, from, &layout));
    RETURN_IF_FAILED(engine_take(program->plan->engine, layout.bytes, &program->address));
    program->spans = program->address + layout.spans;
    return execute_run_send(program, from, &layout);
}

static banyan_status execute_run_make(cuda_program *program, const engine_program *from)
{
    program->flags = from->flags;
    program->span_count = from->span_count;
    if (from->block_count == 0)
        return keep_spans(program, from);
    fused_program fused;
    RETURN_IF_FAILED(fuse_program(from, &fused));
    program->threads = threads_for(&fused.program, program->plan->threads);
    banyan_status status = staged_make(program->plan, &fused.program, &program->staged);
    if (program->staged)
        atomic_store(&program->plan->is_staged, true);
    if (status == BANYAN_OK)
        status = make_packed(program, &fused.program);
    fuse_free(&fused);
    return status;
}

static void execute_run_release(cuda_program *program)
{
    staged_free(program->plan, program->staged);
    engine_give_back(program->plan->engine, program->address);
    free(program->host_spans);
    free(program);
}

banyan_status program_upload(void *loaded, const engine_program *from, void **uploaded)
{
    cuda_program *program = calloc(1, sizeof *program);
    if (!program)
        return banyan_error_set(BANYAN_ERR_NO_MEMORY, "cuda: no memory for a program");
    program->plan = loaded;
    banyan_status status = execute_run_make(program, from);
    if (status != BANYAN_OK) {
        execute_run_release(program);
        return status;
    }
    *uploaded = program;
    return BANYAN_OK;
}

void program_discard(void *uploaded)
{
    cuda_program *program = uploaded;
    if (!program)
        return;
    plan_drain(program->plan);
    execute_run_release(program);
}

static banyan_status execute_run_launch(const cuda_program *program, const engine_run *run,
                                        CUstream stream)
{
    const program_part all = {.end_step = UINT32_MAX, .is_first = true, .is_last = true};
    if (program->staged)
        return staged_queue(program, run, stream);
    return program_launch(program, run, &all, stream);
}

static banyan_status copy_alone(const cuda_program *program, const engine_run *run, CUstream stream)
{
    int device = program->plan->engine->device;
    if (run->copy_in_to)
        RETURN_IF_FAILED(DRIVER(device, cuMemcpyAsync, (CUdeviceptr)run->copy_in_to,
                                (CUdeviceptr)run->copy_in_from, run->copy_in_bytes, stream));
    for (uint32_t i = 0; run->copy_out_to && i < program->span_count; i++) {
        const engine_span *span = &program->host_spans[i];
        RETURN_IF_FAILED(
            DRIVER(device, cuMemcpyAsync, (CUdeviceptr)(run->copy_out_to + span->offset),
                   (CUdeviceptr)(run->copy_out_from + span->offset), span->bytes, stream));
    }
    return BANYAN_OK;
}

static banyan_status execute_run_queue(const cuda_program *program, const engine_run *run,
                                       CUstream stream, bool *captured)
{
    cuda_plan *plan = program->plan;
    int device = plan->engine->device;
    CUstreamCaptureStatus capturing;
    RETURN_IF_FAILED(DRIVER(device, cuStreamIsCapturing, stream, &capturing));
    *captured = capturing != CU_STREAM_CAPTURE_STATUS_NONE;
    RETURN_IF_FAILED(
        (plan->shape.block_count > 0 ? execute_run_launch : copy_alone)(program, run, stream));
    if (*captured) {
        plan->is_captured = true;
    } else {
        RETURN_IF_FAILED(DRIVER(device, cuEventRecord, plan->ended, stream));
        plan->has_run = true;
    }
    engine_was_launched(plan->engine);
    return BANYAN_OK;
}

banyan_status program_run(void *loaded, void *uploaded, const engine_run *run, void *stream,
                          bool *captured)
{
    cuda_plan *plan = loaded;
    return DRIVER_WITHIN(plan->engine->device, execute_run_queue(uploaded, run, stream, captured));
}
