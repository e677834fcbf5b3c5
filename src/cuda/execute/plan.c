/* Loads plans: their memory on the device, and its reset. */
#include "cuda/execute/engine.h"

#include <stdlib.h>
#include <string.h>

/* Capacity of a port channel's queue in requests. */
#define REQUESTS 256
#define REQUEST_BYTES (UINT64_C(1) * REQUESTS * sizeof(kernel_request))
#define VALUE_BYTES (UINT64_C(2) * REQUESTS * sizeof(uint64_t))

static uint64_t room_for(uint64_t *at, uint64_t bytes)
{
    uint64_t begin = *at;
    *at += (bytes + KERNEL_COUNTER_BYTES - 1) / KERNEL_COUNTER_BYTES * KERNEL_COUNTER_BYTES;
    return begin;
}

static cuda_layout execute_plan_lay_out(const engine_plan *shape, uint32_t ports)
{
    uint64_t at = 0;
    cuda_layout layout = {
        .states = room_for(&at, shape->block_count * sizeof(kernel_state)),
        .broken = room_for(&at, sizeof(uint32_t)),
        .barriers = room_for(&at, (shape->barrier_count + UINT64_C(1)) * KERNEL_COUNTER_BYTES),
        .semaphores = room_for(&at, UINT64_C(2) * shape->semaphore_count * KERNEL_COUNTER_BYTES),
        .semaphore_starts = room_for(&at, shape->semaphore_count * sizeof(uint64_t)),
        .consumed = room_for(&at, (uint64_t)shape->end_count * KERNEL_COUNTER_BYTES),
        .queues = room_for(&at, (uint64_t)ports * KERNEL_COUNTER_BYTES),
        .done = room_for(&at, (uint64_t)ports * KERNEL_COUNTER_BYTES),
    };
    layout.bytes = at;
    return layout;
}

static void write_semaphores(cuda_plan *plan)
{
    uint64_t *values = (uint64_t *)(plan->start + plan->layout.semaphores);
    uint64_t *starts = (uint64_t *)(plan->start + plan->layout.semaphore_starts);
    uint32_t count = plan->shape.semaphore_count;
    for (uint32_t i = 0; i < count; i++) {
        starts[i] = plan->shape.semaphores[i];
        values[i * KERNEL_COUNTER_WORDS] = starts[i];
        values[(count + i) * KERNEL_COUNTER_WORDS] = starts[i];
    }
}

static void write_queues(cuda_plan *plan)
{
    for (uint32_t i = 0; i < plan->port_count; i++) {
        kernel_queue *queue =
            (kernel_queue *)(plan->start + plan->layout.queues + i * KERNEL_COUNTER_BYTES);
        *queue = (kernel_queue){
            .capacity = plan->ports[i].room,
            .requests = plan->ports[i].requests,
            .done = (const uint64_t *)plan->ports[i].done,
        };
    }
}

static void place_ports(cuda_plan *plan)
{
    char *requests = (char *)plan->pinned + KERNEL_COUNTER_BYTES;
    uint64_t *values = (uint64_t *)(requests + plan->port_count * REQUEST_BYTES);
    for (uint32_t i = 0; i < plan->port_count; i++) {
        cuda_port *port = &plan->ports[i];
        port->room = REQUESTS;
        port->requests = (kernel_request *)requests + (uint64_t)i * REQUESTS;
        port->values = values + (uint64_t)i * 2 * REQUESTS;
        port->done = plan->block + plan->layout.done + i * KERNEL_COUNTER_BYTES;
    }
}

static banyan_status execute_plan_no_memory(const char *what)
{
    return banyan_error_set(BANYAN_ERR_NO_MEMORY, "cuda: no memory for %s", what);
}

static banyan_status copy_shape(cuda_plan *plan, const engine_plan *shape)
{
    plan->shape = *shape;
    plan->ends = malloc((shape->end_count + 1) * sizeof *plan->ends);
    if (!plan->ends)
        return execute_plan_no_memory("a plan's channels");
    memcpy(plan->ends, shape->ends, shape->end_count * sizeof *plan->ends);
    plan->shape.ends = plan->ends;
    for (uint32_t i = 0; i < shape->end_count; i++)
        plan->port_count += plan->ends[i].is_port;
    plan->ports = calloc(plan->port_count + 1, sizeof *plan->ports);
    if (!plan->ports)
        return execute_plan_no_memory("a plan's port channels");
    cuda_port *port = plan->ports;
    for (uint32_t i = 0; i < shape->end_count; i++) {
        if (plan->ends[i].is_port)
            port++->remote = plan->ends[i].is_remote ? plan->ends[i].peer : -1;
    }
    return BANYAN_OK;
}

static banyan_status execute_plan_take_memory(cuda_plan *plan)
{
    cuda_engine *engine = plan->engine;
    plan->layout = execute_plan_lay_out(&plan->shape, plan->port_count);
    plan->start = calloc(1, plan->layout.bytes);
    if (!plan->start)
        return execute_plan_no_memory("a plan's counters");
    RETURN_IF_FAILED(engine_take(engine, plan->layout.bytes, &plan->block));
    uint64_t requests = plan->port_count * (REQUEST_BYTES + VALUE_BYTES);
    _Static_assert(sizeof(report_words) <= KERNEL_COUNTER_BYTES, "the reports come first");
    RETURN_IF_FAILED(engine_take_pinned(engine, KERNEL_COUNTER_BYTES + requests, &plan->pinned));
    plan->reports = plan->pinned;
    place_ports(plan);
    write_semaphores(plan);
    write_queues(plan);
    plan->shape.semaphores = NULL;
    return engine_copy(engine, plan->block, (CUdeviceptr)plan->start, plan->layout.bytes);
}

banyan_status plan_check_room(const cuda_plan *plan, CUfunction kernel, uint32_t threads,
                              uint32_t shared_bytes, uint32_t *room)
{
    RETURN_IF_FAILED(launch_room(plan->engine->device, kernel, threads, shared_bytes, room));
    if (*room >= plan->shape.block_count)
        return BANYAN_OK;
    return banyan_error_set(BANYAN_ERR_INVALID,
                            "rank %d: a plan of %u thread blocks of %u threads does not run on "
                            "device %d, which has room for %u such blocks at once",
                            plan->shape.rank, plan->shape.block_count, threads,
                            plan->engine->device, *room);
}

/* Programs may use shared memory, so they are checked again when they are uploaded. */
static banyan_status execute_plan_check_blocks(cuda_plan *plan)
{
    CUfunction kernel;
    uint32_t room;
    driver_capture before;
    RETURN_IF_FAILED(engine_enter(plan->engine, &before));
    banyan_status status =
        driver_kernel(execute_kernel(BANYAN_F32, KERNEL_WHOLE), plan->engine->device, &kernel);
    if (status == BANYAN_OK)
        status = plan_check_room(plan, kernel, plan->threads, execute_shared_bytes(0), &room);
    engine_leave(before);
    return status;
}

static banyan_status execute_plan_make_event(cuda_plan *plan)
{
    driver_capture before;
    RETURN_IF_FAILED(engine_enter(plan->engine, &before));
    banyan_status status =
        DRIVER(plan->engine->device, cuEventCreate, &plan->ended, CU_EVENT_DISABLE_TIMING);
    engine_leave(before);
    return status;
}

static void execute_plan_release(cuda_plan *plan)
{
    cuda_engine *engine = plan->engine;
    ports_close(plan);
    driver_capture before;
    if (plan->ended && engine_enter(engine, &before) == BANYAN_OK) {
        driver.cuEventDestroy(plan->ended);
        engine_leave(before);
    }
    engine_give_back(engine, plan->block);
    engine_give_back_pinned(engine, plan->pinned);
    free(plan->start);
    free(plan->ports);
    free(plan->ends);
    free(plan);
}

static void add_to_engine(cuda_plan *plan)
{
    pthread_mutex_lock(&plan->engine->lock);
    plan->next = plan->engine->plans;
    plan->engine->plans = plan;
    pthread_mutex_unlock(&plan->engine->lock);
    plan->watched = (watched){
        .reports = plan->reports, .lasts = plan->shape.waits, .context = plan->shape.owner};
    watch_add(plan->engine->watching, &plan->watched);
}

static void remove_from_engine(cuda_plan *plan)
{
    watch_remove(plan->engine->watching, &plan->watched);
    pthread_mutex_lock(&plan->engine->lock);
    cuda_plan **at = &plan->engine->plans;
    while (*at && *at != plan)
        at = &(*at)->next;
    if (*at)
        *at = plan->next;
    pthread_mutex_unlock(&plan->engine->lock);
}

banyan_status plan_load(void *engine, const engine_plan *shape, void **loaded)
{
    cuda_plan *plan = calloc(1, sizeof *plan);
    if (!plan)
        return execute_plan_no_memory("a plan");
    plan->engine = engine;
    plan->threads = execute_threads(shape->threads_per_block);
    if (plan->threads > plan->engine->most_threads)
        plan->threads = plan->engine->most_threads;
    banyan_status status = copy_shape(plan, shape);
    if (status == BANYAN_OK)
        status = execute_plan_check_blocks(plan);
    if (status == BANYAN_OK)
        status = execute_plan_take_memory(plan);
    if (status == BANYAN_OK)
        status = execute_plan_make_event(plan);
    if (status == BANYAN_OK)
        status = ports_open(plan);
    if (status != BANYAN_OK) {
        execute_plan_release(plan);
        return status;
    }
    add_to_engine(plan);
    *loaded = plan;
    return BANYAN_OK;
}

void plan_unload(void *loaded)
{
    plan_drain(loaded);
    remove_from_engine(loaded);
    execute_plan_release(loaded);
}

const char *plan_check(void *loaded, device_report *report)
{
    const cuda_plan *plan = loaded;
    report_read(plan->reports, report);
    return ports_trouble(plan);
}

banyan_status plan_drain(void *loaded)
{
    cuda_plan *plan = loaded;
    int device = plan->engine->device;
    driver_capture before;
    RETURN_IF_FAILED(engine_enter(plan->engine, &before));
    banyan_status status = BANYAN_OK;
    if (plan->has_run)
        status = DRIVER(device, cuEventSynchronize, plan->ended);
    if (status == BANYAN_OK)
        status = ports_drain(plan);
    engine_leave(before);
    return status;
}

static banyan_status execute_plan_clear(cuda_plan *plan)
{
    cuda_engine *engine = plan->engine;
    driver_capture before;
    RETURN_IF_FAILED(engine_enter(engine, &before));
    banyan_status status = BANYAN_OK;
    if (plan->shape.cleared_bytes > 0)
        status = DRIVER(engine->device, cuMemsetD8Async, (CUdeviceptr)plan->shape.cleared, 0,
                        plan->shape.cleared_bytes, engine->stream);
    engine_leave(before);
    return status;
}

banyan_status plan_reset(void *loaded)
{
    cuda_plan *plan = loaded;
    RETURN_IF_FAILED(execute_plan_clear(plan));
    RETURN_IF_FAILED(
        engine_copy(plan->engine, plan->block, (CUdeviceptr)plan->start, plan->layout.bytes));
    ports_reset(plan);
    memset(plan->reports, 0, sizeof *plan->reports);
    return BANYAN_OK;
}
