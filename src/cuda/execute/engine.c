/* Opens and closes engines, and watches their runs. */
#include "cuda/execute/engine.h"

#include <stdlib.h>

#include "cuda/execute/small_kernels.h"
#include "cuda/runtime/replay.h"
#include "cuda/runtime/watch.h"

/* Call it with the lock held. True if every queued run has ended, and graphs cannot launch
 * others. */
static bool engine_has_ended(const cuda_engine *engine)
{
    for (const cuda_plan *plan = engine->plans; plan; plan = plan->next) {
        if (plan->is_captured ||
            (plan->has_run && driver.cuEventQuery(plan->ended) == CUDA_ERROR_NOT_READY))
            return false;
    }
    return true;
}

/* Clear `busy` only if nothing was launched meanwhile: a launch first increments the count, then
 * reads `busy`. The watch calls it; its calls must not invalidate captures of other threads. */
static bool engine_is_idle(void *argument)
{
    cuda_engine *engine = argument;
    driver_capture before;
    if (!atomic_load(&engine->busy))
        return true;
    uint64_t launches = atomic_load(&engine->launches);
    if (engine_enter(engine, &before) != BANYAN_OK)
        return false;
    pthread_mutex_lock(&engine->lock);
    if (engine_has_ended(engine))
        atomic_store(&engine->busy, false);
    pthread_mutex_unlock(&engine->lock);
    engine_leave(before);
    if (atomic_load(&engine->launches) != launches)
        atomic_store(&engine->busy, true);
    return !atomic_load(&engine->busy);
}

/* Load all kernels before any runs. Loading one later may wait for running kernels, which may in
 * turn wait for the loading rank. */
static banyan_status execute_engine_load_kernels(cuda_engine *engine)
{
#define TYPE_OF(type, dtype) dtype,
    const DLDataType dtypes[] = {EXECUTE_TYPES(TYPE_OF)};
#undef TYPE_OF
    uint32_t threads =
        engine->most_threads < KERNEL_THREADS_MOST ? engine->most_threads : KERNEL_THREADS_MOST;
    engine->room = UINT32_MAX;
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        CUfunction kernel;
        uint32_t room;
        RETURN_IF_FAILED(driver_kernel(scale_kernel(dtypes[i]), engine->device, &kernel));
        for (int kind = KERNEL_KINDS; kind-- > 0;)
            RETURN_IF_FAILED(driver_kernel(execute_kernel(dtypes[i], (kernel_kind)kind),
                                           engine->device, &kernel));
        RETURN_IF_FAILED(
            launch_room(engine->device, kernel, threads, execute_shared_bytes(0), &room));
        engine->room = room < engine->room ? room : engine->room;
    }
    CUfunction signal;
    return driver_kernel(signal_kernel(), engine->device, &signal);
}

static banyan_status execute_engine_take_parts(cuda_engine *engine)
{
    int most = driver_attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, engine->device);
    engine->most_threads = most > 0 ? (uint32_t)most : KERNEL_THREADS_MOST;
    driver_capture before;
    RETURN_IF_FAILED(engine_enter(engine, &before));
    banyan_status status =
        DRIVER(engine->device, cuStreamCreate, &engine->stream, CU_STREAM_NON_BLOCKING);
    if (status == BANYAN_OK)
        status = execute_engine_load_kernels(engine);
    engine_leave(before);
    RETURN_IF_FAILED(status);
    return watch_world(engine->world, engine_is_idle, engine, &engine->watching);
}

static banyan_status copy_in_stream(void *opened, void *to, const void *from, uint64_t bytes,
                                    void *stream)
{
    cuda_engine *engine = opened;
    return DRIVER_WITHIN(engine->device, DRIVER(engine->device, cuMemcpyAsync, (CUdeviceptr)to,
                                                (CUdeviceptr)from, bytes, stream));
}

static banyan_status queue_scale(const cuda_engine *engine, scale_args *args, DLDataType dtype,
                                 CUstream stream)
{
    CUfunction kernel;
    launch_shape by = {.threads = engine->most_threads < SCALE_THREADS ? engine->most_threads
                                                                       : SCALE_THREADS};
    uint64_t blocks = (args->bytes / 16 + by.threads) / by.threads;
    by.blocks = blocks < SCALE_BLOCKS_MOST ? (uint32_t)blocks : SCALE_BLOCKS_MOST;
    RETURN_IF_FAILED(driver_kernel(scale_kernel(dtype), engine->device, &kernel));
    return launch_kernel(engine->device, kernel, by, args, stream);
}

static banyan_status scale_in_stream(void *opened, void *to, const void *from, uint64_t elems,
                                     DLDataType dtype, const engine_scaling *by, void *stream)
{
    const cuda_engine *engine = opened;
    scale_args args = {
        .to = to, .from = from, .bytes = elems * banyan_dtype_bytes(dtype), .by = *by};
    return DRIVER_WITHIN(engine->device, queue_scale(engine, &args, dtype, stream));
}

static banyan_status execute_engine_record(void *opened,
                                           banyan_status (*queue)(void *context, void *stream),
                                           void *context, uint32_t times, void **recorded)
{
    const cuda_engine *engine = opened;
    return replay_record(engine->device, queue, context, times, recorded);
}

static banyan_status blocks_at_once(void *opened, uint32_t *blocks)
{
    const cuda_engine *engine = opened;
    *blocks = engine->room;
    return BANYAN_OK;
}

static void execute_engine_close_engine(void *opened)
{
    cuda_engine *engine = opened;
    pthread_mutex_lock(&engine->lock);
    atomic_store(&engine->closing, true);
    pthread_cond_broadcast(&engine->wake);
    pthread_mutex_unlock(&engine->lock);
    watch_end(engine->watching);
    if (engine->serves)
        pthread_join(engine->proxy, NULL);
    ports_end(engine);
    remote_close(engine->remote);
    staged_end(engine);
    trace_close(engine);
    if (engine->stream && driver_enter(engine->device) == BANYAN_OK) {
        driver.cuStreamDestroy(engine->stream);
        driver_leave();
    }
    launch_engine_closed(LAUNCH_PLANS, engine->device);
    engine_free_pinned(engine);
    pthread_cond_destroy(&engine->wake);
    pthread_mutex_destroy(&engine->ports_lock);
    pthread_mutex_destroy(&engine->lock);
    free(engine);
}

static banyan_status execute_engine_open_engine(banyan_world *world, int device,
                                                uint64_t timeout_ns, void **opened)
{
    CUcontext context;
    RETURN_IF_FAILED(driver_open());
    RETURN_IF_FAILED(driver_context(device, &context));
    cuda_engine *engine = calloc(1, sizeof *engine);
    if (!engine)
        return banyan_error_set(BANYAN_ERR_NO_MEMORY, "cuda: no memory for an engine on device %d",
                                device);
    engine->world = world;
    engine->device = device;
    engine->timeout_ns = timeout_ns;
    module_cond_init(&engine->wake);
    pthread_mutex_init(&engine->lock, NULL);
    pthread_mutex_init(&engine->ports_lock, NULL);
    launch_engine_opened(LAUNCH_PLANS, device);
    banyan_status status = execute_engine_take_parts(engine);
    if (status != BANYAN_OK) {
        execute_engine_close_engine(engine);
        return status;
    }
    *opened = engine;
    return BANYAN_OK;
}

const execute_engine_ops cuda_engine_ops = {
    .size = sizeof(execute_engine_ops),
    .name = "cuda",
    .open = execute_engine_open_engine,
    .close = execute_engine_close_engine,
    .connect = ports_connect,
    .blocks_at_once = blocks_at_once,
    .load = plan_load,
    .unload = plan_unload,
    .drain = plan_drain,
    .upload = program_upload,
    .discard = program_discard,
    .run = program_run,
    .copy = copy_in_stream,
    .scale = scale_in_stream,
    .record = execute_engine_record,
    .play = replay_play,
    .forget = replay_forget,
    .check = plan_check,
    .reset = plan_reset,
    .trace_begin = trace_begin,
    .trace_take = trace_take,
    .trace_stop = trace_stop,
};
