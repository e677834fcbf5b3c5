#include "execute/device/device.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/deadline.h"
#include "core/module.h"
#include "execute/device/program.h"
#include "execute/host/waits.h"
#include "execute/load/binding.h"
#include "execute/load/spmd.h"
#include "world/control.h"

static banyan_status execute_device_find_engine(DLDevice device, const execute_engine_ops **ops)
{
    if (device.device_type != kDLCUDA)
        return error_set(BANYAN_ERR_UNSUPPORTED, "there are no plans on devices of type %d",
                         (int)device.device_type);
    const module_tables *tables;
    RETURN_IF_FAILED(module_load("cuda", &tables));
    if (!tables->engine || tables->engine->size != sizeof(execute_engine_ops))
        return error_set(BANYAN_ERR_UNSUPPORTED,
                         "module cuda: it has no engine for plans that fits this libbanyan");
    *ops = tables->engine;
    return BANYAN_OK;
}

banyan_status device_open(banyan_executor *executor, DLDevice device)
{
    const execute_engine_ops *ops = NULL;
    RETURN_IF_FAILED(execute_device_find_engine(device, &ops));
    RETURN_IF_FAILED(memory_device_find(device.device_type, &executor->device_memory));
    if (executor->ranks > ENGINE_RANKS_MAX)
        return error_set(BANYAN_ERR_UNSUPPORTED,
                         "plans on devices run between up to %d ranks, and rank %d's world has %d",
                         ENGINE_RANKS_MAX, executor->rank, executor->ranks);
    RETURN_IF_FAILED(executor->device_memory->open(device.device_id));
    RETURN_IF_FAILED(ops->open(executor->world, device.device_id,
                               banyan_world_timeout_ns(executor->world), &executor->engine));
    executor->engine_ops = ops;
    return BANYAN_OK;
}

banyan_status device_connect(banyan_executor *executor)
{
    return executor->engine_ops->connect(executor->engine);
}

void device_close(banyan_executor *executor)
{
    if (executor->engine_ops)
        executor->engine_ops->close(executor->engine);
}

static const specialized_plan *specialized_of(const banyan_loaded_plan *loaded,
                                              const void *uploaded)
{
    for (size_t i = 0; i < loaded->specialized.count; i++) {
        const specialized_plan *specialized = loaded->specialized.data[i];
        if (specialized->uploaded[0] == uploaded || specialized->uploaded[1] == uploaded)
            return specialized;
    }
    return NULL;
}

/* Return the rank that the step waits for, or -1 if it is not known. */
static int execute_device_describe_wait(const banyan_loaded_plan *loaded,
                                        const device_report *report, char text[WAIT_TEXT_BYTES])
{
    engine_wait wait = engine_wait_of(report);
    const specialized_plan *specialized = specialized_of(loaded, wait.uploaded);
    if (!specialized || wait.block >= specialized->block_count ||
        wait.step >= specialized->blocks[wait.block].steps.count) {
        snprintf(text, WAIT_TEXT_BYTES, "in thread block %" PRIu32 " of a plan", wait.block);
        return -1;
    }
    const plan_rank *rank = &loaded->plan->ranks[loaded->executor->rank];
    plan_run of = {.loaded = (banyan_loaded_plan *)loaded, .specialized = specialized};
    task t = {
        .steps = specialized->blocks[wait.block].steps.data,
        .step_count = (uint32_t)specialized->blocks[wait.block].steps.count,
        .at = wait.step,
        .index = wait.index,
        .iteration = wait.iteration,
        .block = &rank->blocks[wait.block],
    };
    if (engine_is_fused(&t.steps[t.at], t.index))
        t.at -= 2;
    if (report->verdict == DEVICE_FINE && !wait_is_for_peer(&t))
        return -1;
    wait_describe(&of, &t, text);
    return wait_peer(&of, &t);
}

/* Runs in the engine's thread. The fields of a report may stem from different waits: then the text
 * describes an existing wait, or none. */
static void take_wait(void *owner, const device_report *report)
{
    banyan_loaded_plan *loaded = owner;
    device_wait *known = &loaded->waits;
    pthread_mutex_lock(&known->lock);
    if (report && !engine_wait_of(report).uploaded)
        report = NULL;
    if (report && memcmp(known->reported.what, report->what, sizeof report->what) != 0) {
        known->reported = *report;
        known->peer = execute_device_describe_wait(loaded, report, known->text);
    }
    control_device_waits(&known->wait, report ? known->peer : -1, report ? report->waited_ns : 0,
                         known->text);
    pthread_mutex_unlock(&known->lock);
}

static void find_mirrors(const banyan_loaded_plan *loaded, engine_end *ends)
{
    int rank = loaded->executor->rank;
    const uint32_t *counts = loaded->plan->ranks[rank].channel_count;
    for (uint32_t i = 0; i < counts[PLAN_PORT]; i++) {
        uint32_t mirror;
        if (plan_mirror(loaded->plan, rank, i, &mirror))
            ends[counts[PLAN_MEMORY] + i].mirror = counts[PLAN_MEMORY] + mirror;
    }
}

static void fill_ends(const banyan_loaded_plan *loaded, engine_end *ends)
{
    const plan_rank *rank = &loaded->plan->ranks[loaded->executor->rank];
    for (int type = PLAN_MEMORY; type <= PLAN_PORT; type++) {
        for (uint32_t i = 0; i < rank->channel_count[type]; i++) {
            const channel_end *end = &loaded->ends[type][i];
            *ends++ = (engine_end){.incoming = (uint64_t *)end->incoming,
                                   .outgoing = (uint64_t *)end->outgoing,
                                   .peer = end->peer,
                                   .is_port = type == PLAN_PORT,
                                   .is_remote = !end->wake_up,
                                   .mirror = ENGINE_NO_MIRROR};
        }
    }
}

static engine_memory device_describe_memory(const banyan_memory *memory)
{
    if (!memory)
        return (engine_memory){.id = 0};
    return (engine_memory){memory->id, banyan_memory_local(memory), banyan_memory_bytes(memory)};
}

/* Check that remote addresses can name what the plan reaches. */
static banyan_status device_check_memories(const banyan_loaded_plan *loaded)
{
    const banyan_memory *memories[] = {loaded->memories[PLAN_INPUT], loaded->memories[PLAN_OUTPUT],
                                       loaded->block};
    uint64_t most = UINT64_C(1) << ENGINE_REMOTE_SHIFT;
    for (int i = 0; i < ENGINE_MEMORIES && loaded->executor->transport; i++) {
        if (memories[i] &&
            (memories[i]->id >= UINT64_MAX / most || banyan_memory_bytes(memories[i]) > most))
            return error_set(BANYAN_ERR_UNSUPPORTED,
                             "rank %d: GPUs of other nodes reach the first %" PRIu64
                             " symmetric buffers of a world, of up to %" PRIu64 " bytes",
                             loaded->executor->rank, UINT64_MAX / most, most);
    }
    return BANYAN_OK;
}

banyan_status device_load(banyan_loaded_plan *loaded)
{
    banyan_executor *executor = loaded->executor;
    const plan_rank *rank = &loaded->plan->ranks[executor->rank];
    const block_layout *layout = &loaded->layouts[executor->rank];
    uint32_t end_count = rank->channel_count[PLAN_MEMORY] + rank->channel_count[PLAN_PORT];
    bool lock_step = !executor->transport && plan_is_spmd(loaded->plan);
    RETURN_IF_FAILED(device_check_memories(loaded));
    if (lock_step)
        RETURN_IF_FAILED(plan_runs_in_lock_step(loaded->plan, &lock_step));
    engine_end *ends = calloc(end_count + 1, sizeof *ends);
    if (!ends)
        return error_no_memory((end_count + 1) * sizeof *ends, "a plan's channels");
    fill_ends(loaded, ends);
    if (lock_step)
        find_mirrors(loaded, ends);
    engine_plan plan = {
        .rank = executor->rank,
        .ranks = executor->ranks,
        .block_count = rank->block_count,
        .threads_per_block = (uint32_t)loaded->plan->threads_per_block,
        .ends = ends,
        .end_count = end_count,
        .semaphores = rank->semaphores,
        .semaphore_count = rank->semaphore_count,
        .barrier_count = loaded->barrier_count,
        .memories = {device_describe_memory(loaded->memories[PLAN_INPUT]),
                     device_describe_memory(loaded->memories[PLAN_OUTPUT]),
                     device_describe_memory(loaded->block)},
        .cleared = banyan_memory_local(loaded->block),
        .cleared_bytes = layout->scratch + layout->scratch_bytes,
        .scratch_half = loaded->plan->double_scratch ? layout->scratch_half : 0,
        .lock_step = lock_step,
        .waits = take_wait,
        .owner = loaded,
    };
    banyan_status status = executor->engine_ops->load(executor->engine, &plan, &loaded->on_device);
    free(ends);
    RETURN_IF_FAILED(status);
    if (!array_push(&executor->on_device, loaded)) {
        executor->engine_ops->unload(loaded->on_device);
        loaded->on_device = NULL;
        return BANYAN_ERR_NO_MEMORY;
    }
    return BANYAN_OK;
}

void device_unload(banyan_loaded_plan *loaded)
{
    banyan_executor *executor = loaded->executor;
    for (size_t i = 0; i < loaded->specialized.count && loaded->on_device; i++)
        device_drop_specialized(loaded, loaded->specialized.data[i]);
    if (loaded->on_device)
        executor->engine_ops->unload(loaded->on_device);
    control_device_waits(&loaded->waits.wait, -1, 0, NULL);
    for (size_t i = 0; i < executor->on_device.count; i++) {
        if (executor->on_device.data[i] == loaded) {
            executor->on_device.data[i] = executor->on_device.data[--executor->on_device.count];
            break;
        }
    }
    for (int i = 0; i < 2; i++) {
        if (loaded->private_buffers[i])
            executor->device_memory->free(executor->device.device_id, loaded->private_buffers[i]);
        loaded->private_buffers[i] = NULL;
    }
}

static banyan_status execute_device_upload(const banyan_loaded_plan *loaded,
                                           specialized_plan *specialized, uint32_t multicast)
{
    engine_arrays arrays;
    engine_program program;
    banyan_status status = engine_program_make(loaded, specialized, multicast, &arrays, &program);
    if (status == BANYAN_OK)
        status = loaded->executor->engine_ops->upload(loaded->on_device, &program,
                                                      &specialized->uploaded[multicast != 0]);
    engine_arrays_free(&arrays);
    return status;
}

/* Return the program for these bases. If some bases differ from those of the program with
 * multicast, use the program without. */
static banyan_status find_program(const banyan_loaded_plan *loaded, specialized_plan *specialized,
                                  void **found)
{
    uint32_t multicast = loaded->bindings[0].multicast;
    if (specialized->uploaded[1] && specialized->multicast != multicast)
        multicast = 0;
    if (!specialized->uploaded[multicast != 0])
        RETURN_IF_FAILED(execute_device_upload(loaded, specialized, multicast));
    if (multicast != 0)
        specialized->multicast = multicast;
    *found = specialized->uploaded[multicast != 0];
    return BANYAN_OK;
}

banyan_status device_run(banyan_loaded_plan *loaded, specialized_plan *specialized,
                         const void *input, void *output, void *stream)
{
    binding *placed = &loaded->bindings[0];
    if (placed->specialized != specialized || placed->input != input || placed->output != output) {
        RETURN_IF_FAILED(binding_make(loaded, specialized, input, output, placed));
        multicast_place(loaded, specialized, placed);
    }
    void *program;
    RETURN_IF_FAILED(find_program(loaded, specialized, &program));
    engine_run run = {
        .bases = placed->bases,
        .group_bases = placed->group_bases,
        .copy_in_to = placed->copy_in.to,
        .copy_in_from = placed->copy_in.from,
        .copy_in_bytes = placed->copy_in.bytes,
        .copy_out_to = placed->copy_out.to,
        .copy_out_from = placed->copy_out.from,
    };
    bool captured = false;
    RETURN_IF_FAILED(
        loaded->executor->engine_ops->run(loaded->on_device, program, &run, stream, &captured));
    specialized->captured |= captured;
    loaded->captured |= captured;
    return BANYAN_OK;
}

void device_drop_specialized(banyan_loaded_plan *loaded, specialized_plan *specialized)
{
    banyan_executor *executor = loaded->executor;
    if (!specialized->uploaded[0] && !specialized->uploaded[1])
        return;
    executor->engine_ops->drain(loaded->on_device);
    device_status(loaded);
    if (executor->trace)
        device_trace_take(executor);
    for (int i = 0; i < 2; i++) {
        executor->engine_ops->discard(specialized->uploaded[i]);
        specialized->uploaded[i] = NULL;
    }
}

void device_fail(banyan_loaded_plan *loaded, banyan_status status)
{
    loaded->failed = error_keep(status);
}

static void execute_device_explain(banyan_loaded_plan *loaded, const device_report *report)
{
    const banyan_executor *executor = loaded->executor;
    char text[WAIT_TEXT_BYTES];
    int peer = execute_device_describe_wait(loaded, report, text);
    if (report->verdict == DEVICE_LATE) {
        char own[CONTROL_RANK_BYTES], late[CONTROL_LATE_BYTES] = "";
        if (peer >= 0)
            control_device_late(executor->world, peer, late, sizeof late);
        device_fail(loaded, error_set(BANYAN_ERR_TIMEOUT, "%s waited %.1f s %s%s; %s" TIMEOUT_SETS,
                                      control_own_name(executor->world, own),
                                      (double)report->waited_ns / (double)NS_PER_S, text, late,
                                      timeout_name(executor->timeout.option)));
        return;
    }
    banyan_status status = banyan_world_check(executor->world);
    if (status == BANYAN_OK)
        status = error_set(BANYAN_ERR_ABORTED, "a run was stopped");
    device_fail(loaded, error_set(status, "%s while rank %d waited %s", banyan_last_error(),
                                  executor->rank, text));
}

banyan_status device_status(banyan_loaded_plan *loaded)
{
    device_report report;
    if (loaded->failed.status == BANYAN_OK) {
        const banyan_executor *executor = loaded->executor;
        const char *trouble = executor->engine_ops->check(loaded->on_device, &report);
        if (trouble)
            device_fail(loaded,
                        error_set(BANYAN_ERR_SYSTEM, "rank %d: %s", executor->rank, trouble));
        else if (report.verdict != DEVICE_FINE)
            execute_device_explain(loaded, &report);
        else
            return BANYAN_OK;
    }
    return error_again(&loaded->failed);
}

banyan_status device_drain(banyan_loaded_plan *loaded)
{
    return loaded->executor->engine_ops->drain(loaded->on_device);
}

banyan_status device_reset(banyan_loaded_plan *loaded)
{
    RETURN_IF_FAILED(loaded->executor->engine_ops->reset(loaded->on_device));
    take_wait(loaded, NULL);
    loaded->failed.status = BANYAN_OK;
    return BANYAN_OK;
}

static const banyan_loaded_plan *loaded_of(const banyan_executor *executor, const void *on_device)
{
    for (size_t i = 0; i < executor->on_device.count; i++) {
        if (executor->on_device.data[i]->on_device == on_device)
            return executor->on_device.data[i];
    }
    return NULL;
}

static banyan_status take_record(void *context, const engine_trace *one)
{
    banyan_executor *executor = context;
    const banyan_loaded_plan *loaded = loaded_of(executor, one->loaded);
    const specialized_plan *specialized = loaded ? specialized_of(loaded, one->uploaded) : NULL;
    if (!specialized || one->block >= specialized->block_count ||
        one->step >= specialized->blocks[one->block].steps.count)
        return BANYAN_OK;
    const step *s = &specialized->blocks[one->block].steps.data[one->step];
    trace_record record = {
        .begin_ns = one->begin_ns,
        .end_ns = one->end_ns,
        .waited_ns = one->waited_ns,
        .iteration = one->iteration,
        .block = loaded->plan->ranks[executor->rank].blocks[one->block].id,
        .number = s->number,
        .loop_number = step_loop_number(s),
        .kind = s->whole->kind,
        .peer = step_peer(s),
    };
    trace_add(&executor->trace->rings[0], &record);
    return BANYAN_OK;
}

banyan_status device_trace_begin(banyan_executor *executor)
{
    return executor->engine_ops->trace_begin(executor->engine);
}

banyan_status device_trace_take(banyan_executor *executor)
{
    for (size_t i = 0; i < executor->on_device.count; i++)
        RETURN_IF_FAILED(device_drain(executor->on_device.data[i]));
    return executor->engine_ops->trace_take(executor->engine, take_record, executor);
}

banyan_status device_trace_stop(banyan_executor *executor)
{
    return executor->engine_ops->trace_stop(executor->engine);
}
