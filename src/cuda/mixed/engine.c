/* Opens and closes engines of mixed collectives, and does their work besides runs. */
#include "cuda/mixed/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/module.h"
#include "cuda/memory/memory.h"
#include "cuda/runtime/replay.h"

#define MOST_BYTES_DEFAULT (UINT64_C(64) << 20)
#define MOST_BYTES (UINT64_C(3) << 30) /* units of all slots have 32-bit numbers */
#define WARP 32
#define PLAYS 3

static const void *kernel_symbol(DLDataType dtype, mixed_kernel kernel)
{
    if (kernel >= MIXED_UNTYPED)
        return mixed_kernel_untyped(kernel);
    if (dtype.bits == 32)
        return mixed_kernel_f32(kernel);
    return dtype.code == kDLBfloat ? mixed_kernel_bf16(kernel) : mixed_kernel_f16(kernel);
}

/* Load all kernels before any runs. Loading one later may wait for running kernels, which may in
 * turn wait for the loading rank. */
static banyan_status mixed_engine_load_kernels(cuda_mixed *engine)
{
    for (int i = 0; i < MIXED_LOADED; i++) {
        CUfunction function;
        if (mixed_kernel_is_multicast((mixed_kernel)i) && !engine->setup->multicast.is_expected)
            continue;
        RETURN_IF_FAILED(driver_kernel(kernel_symbol(engine->setup->dtype, (mixed_kernel)i),
                                       engine->device, &function));
        RETURN_IF_FAILED(mixed_take_kernel(engine, (mixed_kernel)i, function));
    }
    return BANYAN_OK;
}

static uint32_t mixed_engine_lower(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* Apply the options, within the device's limits. */
static void bound_launches(cuda_mixed *engine)
{
    const mixed_engine_setup *setup = engine->setup;
    uint32_t most =
        (uint32_t)driver_attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, engine->device);
    most = mixed_engine_lower(most, MIXED_THREADS_MAX);
    engine->processors =
        (uint32_t)driver_attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, engine->device);
    engine->most_blocks = setup->grid_size > 0
                              ? mixed_engine_lower((uint32_t)setup->grid_size, engine->processors)
                              : engine->processors;
    engine->most_threads =
        setup->max_block_size > 0
            ? mixed_engine_lower((uint32_t)setup->max_block_size / WARP * WARP, most)
            : most;
    engine->most_threads = engine->most_threads > 0 ? engine->most_threads : WARP;
    uint32_t least = ((uint32_t)setup->min_block_size + WARP - 1) / WARP * WARP;
    engine->least_threads = mixed_engine_lower(least > 0 ? least : WARP, engine->most_threads);
}

static banyan_status mixed_engine_take_memory(cuda_mixed *engine)
{
    uint64_t states = (uint64_t)engine->most_blocks * sizeof(mixed_state);
    void *block;
    RETURN_IF_FAILED(cuda_memory_ops.alloc(engine->device, states + sizeof(uint32_t), &block));
    engine->block = (CUdeviceptr)block;
    engine->states = block;
    engine->broken = (uint32_t *)((char *)block + states);
    void *reports, *same; /* one address on host and device */
    RETURN_IF_FAILED(pinned_alloc(engine->device, sizeof *engine->reports, &reports, &same));
    engine->reports = reports;
    return BANYAN_OK;
}

/* Restore the state before the first launch. */
static banyan_status mixed_engine_begin_anew(cuda_mixed *engine)
{
    uint64_t bytes = (uint64_t)engine->most_blocks * sizeof(mixed_state) + sizeof(uint32_t);
    memset(engine->reports, 0, sizeof *engine->reports);
    RETURN_IF_FAILED(
        DRIVER(engine->device, cuMemsetD8Async, engine->block, 0, bytes, engine->stream));
    if (engine->has_parts && engine->buffer_bytes > 0)
        RETURN_IF_FAILED(
            mixed_clear(engine, engine->parts[engine->rank], MIXED_TURNS * engine->buffer_bytes));
    return DRIVER(engine->device, cuStreamSynchronize, engine->stream);
}

static void mixed_engine_describe_wait(const device_report *wait, char *text, size_t bytes)
{
    snprintf(text, bytes, "for rank %d in %s (%s)", device_report_rank(wait),
             banyan_mixed_op_name(mixed_report_op(wait)),
             banyan_mixed_mode_name(mixed_report_mode(wait)));
}

static banyan_status watch_again(cuda_mixed *engine)
{
    watch_end(engine->watching);
    engine->watching = NULL;
    banyan_world *world = engine->setup->worlds[MIXED_WORLD];
    if (!world || (engine->ranks == 1 && engine->setup->grid.nodes == 1))
        return BANYAN_OK;
    return watch_ranks(world, engine->reports, mixed_engine_describe_wait, &engine->watching);
}

static banyan_status mixed_engine_take_parts(cuda_mixed *engine)
{
    bound_launches(engine);
    RETURN_IF_FAILED(
        DRIVER(engine->device, cuStreamCreate, &engine->stream, CU_STREAM_NON_BLOCKING));
    RETURN_IF_FAILED(mixed_engine_load_kernels(engine));
    RETURN_IF_FAILED(mixed_engine_take_memory(engine));
    if (engine->setup->grid.nodes > 1)
        nodes_size(engine);
    else
        engine->buffer_bytes = mixed_buffer_bytes(engine);
    return mixed_engine_begin_anew(engine);
}

static void mixed_engine_close_engine(void *opened)
{
    cuda_mixed *engine = opened;
    if (!engine)
        return;
    watch_end(engine->watching);
    nodes_close(engine);
    if (driver_enter(engine->device) == BANYAN_OK) {
        mixed_nccl_close(engine);
        if (engine->stream)
            driver.cuStreamDestroy(engine->stream);
        if (engine->block)
            cuda_memory_ops.free(engine->device, (void *)engine->block);
        pinned_free(engine->reports);
        driver_leave();
    }
    if (engine->counted)
        launch_engine_closed(LAUNCH_MIXED, engine->device);
    free(engine);
}

static banyan_status mixed_engine_open_engine(const mixed_engine_setup *setup, void **opened)
{
    RETURN_IF_FAILED(driver_open());
    cuda_mixed *engine = calloc(1, sizeof *engine);
    if (!engine)
        return banyan_error_set(BANYAN_ERR_NO_MEMORY, "cuda: no memory for mixed collectives");
    engine->setup = setup;
    engine->device = setup->device.device_id;
    engine->ranks = setup->grid.local_size;
    engine->rank = setup->grid.local_rank;
    engine->elem_bytes = setup->dtype.bits / 8u;
    engine->nothing = setup->dtype.bits == 32 ? 0x80000000u : 0x80008000u;
    engine->most_bytes = setup->max_bytes > 0 ? setup->max_bytes : MOST_BYTES_DEFAULT;
    if (engine->most_bytes > MOST_BYTES)
        engine->most_bytes = MOST_BYTES;
    engine->most_bytes = (engine->most_bytes + MIXED_UNIT - 1) / MIXED_UNIT * MIXED_UNIT;
    banyan_status status = driver_enter(engine->device);
    if (status == BANYAN_OK) {
        launch_engine_opened(LAUNCH_MIXED, engine->device);
        engine->counted = true;
        status = mixed_engine_take_parts(engine);
        driver_leave();
    }
    if (status == BANYAN_OK)
        status = watch_again(engine);
    if (status != BANYAN_OK) {
        mixed_engine_close_engine(engine);
        return status;
    }
    *opened = engine;
    return BANYAN_OK;
}

static uint64_t mixed_engine_room(const void *opened)
{
    const cuda_mixed *engine = opened;
    if (engine->setup->grid.nodes > 1)
        return nodes_room(engine);
    return engine->ranks <= MIXED_RANKS_MAX ? MIXED_TURNS * engine->buffer_bytes : 0;
}

/* All ranks fail if one does, since the others would wait for it. No rank continues before all
 * have arrived. */
static banyan_status mixed_engine_agree(const cuda_mixed *engine, banyan_status mine)
{
    banyan_world *world = engine->setup->worlds[MIXED_WORLD];
    return world ? banyan_module_agree(world, mine) : mine;
}

/* Peers write here as soon as they may run. */
static banyan_status mixed_engine_use(void *opened, char *const *parts)
{
    cuda_mixed *engine = opened;
    engine->has_parts = mixed_engine_room(engine) > 0;
    if (engine->has_parts)
        memcpy(engine->parts, parts, (size_t)engine->ranks * sizeof *parts);
    banyan_status status = DRIVER_WITHIN(engine->device, mixed_engine_begin_anew(engine));
    if (status == BANYAN_OK)
        status = watch_again(engine);
    return mixed_engine_agree(engine, status);
}

static void leave_worlds(void *opened)
{
    cuda_mixed *engine = opened;
    watch_end(engine->watching);
    engine->watching = NULL;
    if (driver_enter(engine->device) != BANYAN_OK)
        return;
    mixed_nccl_close(engine);
    driver_leave();
}

static banyan_status init_nvshmem(void *opened)
{
    return nodes_open(opened);
}

static bool mixed_engine_say(char *reason, size_t reason_bytes, const char *text)
{
    snprintf(reason, reason_bytes, "%s", text);
    return false;
}

static bool node_has(const cuda_mixed *engine, banyan_mixed_mode mode, char *reason,
                     size_t reason_bytes)
{
    bool waits = mixed_unicast(mode) == BANYAN_MIXED_ONE_SHOT;
    bool bytes = mixed_unicast(mode) == BANYAN_MIXED_TWO_SHOT;
    if (engine->ranks > MIXED_RANKS_MAX)
        return mixed_engine_say(reason, reason_bytes,
                                "a node has more GPUs than its kernels address");
    if (engine->ranks > 1 && !engine->has_parts)
        return mixed_engine_say(reason, reason_bytes, "its memory is not allocated yet");
    if (!waits && !bytes)
        return mixed_engine_say(reason, reason_bytes, "GPUs do not have it");
    if (bytes && engine->setup->grid.local_tp == 1)
        return mixed_engine_say(reason, reason_bytes,
                                "there are no tensor-parallel ranks inside a node");
    return true;
}

static bool mixed_engine_has(const void *opened, banyan_mixed_op op, banyan_mixed_mode mode,
                             char *reason, size_t reason_bytes)
{
    const cuda_mixed *engine = opened;
    const mixed_multicast *multicast = &engine->setup->multicast;
    (void)op;
    bool there = engine->setup->grid.nodes > 1 ? nodes_have(engine, mode, reason, reason_bytes)
                                               : node_has(engine, mode, reason, reason_bytes);
    if (there && mode_is_multicast(mode) && !multicast->node)
        return mixed_engine_say(reason, reason_bytes, multicast->why_not);
    return there;
}

static void mixed_engine_check(void *opened, device_report *report)
{
    report_read(((const cuda_mixed *)opened)->reports, report);
}

static banyan_status mixed_engine_copy(void *opened, void *to, const void *from, uint64_t bytes,
                                       void *stream)
{
    const cuda_mixed *engine = opened;
    return DRIVER_WITHIN(engine->device, DRIVER(engine->device, cuMemcpyAsync, (CUdeviceptr)to,
                                                (CUdeviceptr)from, bytes, stream));
}

static banyan_status mixed_engine_zero(void *opened, void *to, uint64_t bytes, void *stream)
{
    const cuda_mixed *engine = opened;
    return DRIVER_WITHIN(
        engine->device, DRIVER(engine->device, cuMemsetD8Async, (CUdeviceptr)to, 0, bytes, stream));
}

static banyan_status mixed_engine_queue(const cuda_mixed *engine, const mixed_call *call,
                                        CUstream stream)
{
    return DRIVER_WITHIN(engine->device, engine->setup->grid.nodes > 1
                                             ? nodes_run(engine, call, stream)
                                             : mixed_run_on_node(engine, call, stream));
}

/* A rank that cannot queue a launch has made one launch fewer than the others from then on, so it
 * ends the context for all ranks. */
static banyan_status mixed_engine_run(void *opened, const mixed_call *call, void *stream)
{
    const cuda_mixed *engine = opened;
    banyan_world *world = engine->setup->worlds[MIXED_WORLD];
    char message[512];
    banyan_status status = mixed_engine_queue(engine, call, stream);
    if (status == BANYAN_OK || !world)
        return status;
    snprintf(message, sizeof message, "could not begin %s (%s), which others make: %s",
             banyan_mixed_op_name(call->op), banyan_mixed_mode_name(call->mode),
             banyan_last_error());
    (void)banyan_world_abort(world, message);
    return banyan_error_set(status, "rank %d %s", banyan_world_rank(world), message);
}

static int mixed_engine_compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static banyan_status mixed_engine_play(const cuda_mixed *engine, void *recorded, uint64_t *ns)
{
    banyan_world *world = engine->setup->worlds[MIXED_WORLD];
    uint64_t all[PLAYS];
    for (int i = 0; i < PLAYS; i++) {
        if (world)
            RETURN_IF_FAILED(banyan_world_barrier(world));
        RETURN_IF_FAILED(replay_play_together(recorded, &all[i]));
    }
    qsort(all, PLAYS, sizeof *all, mixed_engine_compare);
    *ns = all[PLAYS / 2];
    return BANYAN_OK;
}

static banyan_status mixed_engine_measure(void *opened,
                                          banyan_status (*queue)(void *context, void *stream),
                                          void *context, uint32_t times, uint64_t *ns)
{
    const cuda_mixed *engine = opened;
    void *recorded = NULL;
    uint64_t all = 0;
    banyan_status status =
        mixed_engine_agree(engine, replay_record(engine->device, queue, context, times, &recorded));
    if (status == BANYAN_OK)
        status = mixed_engine_play(engine, recorded, &all);
    replay_forget(recorded);
    if (status == BANYAN_OK)
        *ns = all / (times > 0 ? times : 1);
    return status;
}

const mixed_engine_ops cuda_mixed_ops = {
    .size = sizeof(mixed_engine_ops),
    .name = "cuda",
    .open = mixed_engine_open_engine,
    .close = mixed_engine_close_engine,
    .room = mixed_engine_room,
    .use = mixed_engine_use,
    .leave_worlds = leave_worlds,
    .init_nvshmem = init_nvshmem,
    .has = mixed_engine_has,
    .run = mixed_engine_run,
    .check = mixed_engine_check,
    .copy = mixed_engine_copy,
    .zero = mixed_engine_zero,
    .nccl_find = mixed_nccl_find,
    .nccl_open = mixed_nccl_open,
    .nccl_run = mixed_nccl_run,
    .nccl_check = mixed_nccl_check,
    .measure = mixed_engine_measure,
};
