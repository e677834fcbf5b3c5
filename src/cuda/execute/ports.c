/* Port channels: a thread passes the kernels' requests to the copy engines. */
#include "cuda/execute/engine.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "cuda/runtime/watch.h"

/* Polls without progress before the thread naps between polls, and the length of a nap. */
#define LOOKS 4000
#define NAP_NS 20000L
#define IDLE_NS 2000000L

static bool has_come(const cuda_port *port)
{
    const kernel_request *next = &port->requests[port->served % port->room];
    return __atomic_load_n(&next->number, __ATOMIC_ACQUIRE) == port->served + 1;
}

/* Counters are updated by copies, after the earlier copies in the stream: streams cannot write
 * values to some kinds of memory. A value stays in its place until a full queue of later requests
 * has arrived, when all earlier ones are done. */
static CUresult execute_ports_count_up(const cuda_port *port, uint64_t number, uint32_t which,
                                       CUdeviceptr counter, uint64_t value)
{
    uint64_t *from = &port->values[2 * (number % port->room) + which];
    *from = value;
    return driver.cuMemcpyAsync(counter, (CUdeviceptr)from, sizeof value, port->stream);
}

static CUresult execute_ports_pass_on(cuda_port *port, const kernel_request *request)
{
    if (request->kind == KERNEL_SIGNAL)
        return execute_ports_count_up(port, port->served, 0, (CUdeviceptr)request->signal,
                                      ++port->signals);
    return driver.cuMemcpyAsync((CUdeviceptr)request->destination, (CUdeviceptr)request->source,
                                request->bytes, port->stream);
}

static void break_port(cuda_engine *engine, cuda_port *port, CUresult result)
{
    driver_check(result, "a port channel's copies", engine->device);
    snprintf(port->trouble, sizeof port->trouble, "%s", banyan_last_error());
    atomic_store_explicit(&port->broken, true, memory_order_release);
}

/* False: it has not been passed on whole yet. */
static bool execute_ports_pass_far(cuda_engine *engine, cuda_port *port,
                                   const kernel_request *request)
{
    uint64_t value = port->signals + 1;
    bool is_signal = request->kind == KERNEL_SIGNAL;
    bool passed = is_signal ? remote_put(engine->remote, port->remote, request->signal, &value,
                                         sizeof value, true, &port->passed)
                            : remote_put(engine->remote, port->remote, request->destination,
                                         request->source, request->bytes, false, &port->passed);
    if (!passed)
        return false;
    port->signals += is_signal;
    port->passed = 0;
    return true;
}

/* A port to another node. Requests are done when their sources have been read. */
static bool serve_far_port(cuda_engine *engine, cuda_port *port)
{
    uint64_t first = port->served, done_before = port->done_count;
    while (has_come(port) &&
           execute_ports_pass_far(engine, port, &port->requests[port->served % port->room]))
        port->served++;
    if (port->served == done_before || remote_reads_sources(engine->remote, port->remote))
        return port->served != first;
    CUresult result = execute_ports_count_up(port, port->served - 1, 1, port->done, port->served);
    if (result != CUDA_SUCCESS)
        break_port(engine, port, result);
    port->done_count = port->served;
    return true;
}

/* A request that cannot be passed on is never completed, so that its waiters reach their
 * deadline. */
static bool serve_port(cuda_engine *engine, cuda_port *port)
{
    uint64_t first = port->served;
    CUresult result = CUDA_SUCCESS;
    while (has_come(port) && result == CUDA_SUCCESS) {
        result = execute_ports_pass_on(port, &port->requests[port->served % port->room]);
        port->served++;
    }
    if (port->served != first && result == CUDA_SUCCESS)
        result = execute_ports_count_up(port, port->served - 1, 1, port->done, port->served);
    if (result != CUDA_SUCCESS)
        break_port(engine, port, result);
    return port->served != first;
}

static bool serve_plan(cuda_engine *engine, cuda_plan *plan)
{
    bool any = false;
    for (uint32_t i = 0; i < plan->port_count; i++) {
        cuda_port *port = &plan->ports[i];
        if (!atomic_load(&port->broken))
            any |= (port->remote < 0 ? serve_port : serve_far_port)(engine, port);
    }
    return any;
}

/* Find this rank's memory for a message from another node. */
static CUdeviceptr execute_ports_find(void *context, uint64_t id, uint64_t offset, uint64_t bytes)
{
    const cuda_engine *engine = context;
    for (const cuda_plan *plan = engine->served; plan; plan = plan->next_served) {
        for (int i = 0; i < ENGINE_MEMORIES; i++) {
            const engine_memory *memory = &plan->shape.memories[i];
            if (memory->id == id && memory->address && offset <= memory->bytes &&
                bytes <= memory->bytes - offset)
                return (CUdeviceptr)(uintptr_t)(memory->address + offset);
        }
    }
    return 0;
}

static bool execute_ports_serve_all(cuda_engine *engine)
{
    bool any = false;
    pthread_mutex_lock(&engine->ports_lock);
    for (cuda_plan *plan = engine->served; plan; plan = plan->next_served)
        any |= !atomic_load(&plan->is_staged) && serve_plan(engine, plan);
    if (engine->remote)
        any |= remote_serve(engine->remote, execute_ports_find, engine);
    pthread_mutex_unlock(&engine->ports_lock);
    return any;
}

static void execute_ports_nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
}

/* Messages from other nodes arrive also when no run is under way. */
static void sleep_until_busy(cuda_engine *engine)
{
    pthread_mutex_lock(&engine->lock);
    while (!atomic_load(&engine->busy) && !atomic_load(&engine->closing)) {
        if (engine->remote) {
            module_cond_nap(&engine->wake, &engine->lock, IDLE_NS);
            break;
        }
        pthread_cond_wait(&engine->wake, &engine->lock);
    }
    pthread_mutex_unlock(&engine->lock);
}

static void execute_ports_rest(cuda_engine *engine)
{
    if (engine->remote)
        remote_rest(engine->remote);
    if (atomic_load(&engine->busy))
        execute_ports_nap();
    else
        sleep_until_busy(engine);
}

static void *execute_ports_serve(void *argument)
{
    cuda_engine *engine = argument;
    if (driver_enter(engine->device) != BANYAN_OK)
        return NULL;
    driver_capture_relax();
    for (uint32_t idle = 0; !atomic_load(&engine->closing);) {
        if (atomic_load(&engine->visitors) > 0)
            execute_ports_nap();
        else if (execute_ports_serve_all(engine))
            idle = 0;
        else if (idle++ < LOOKS)
            continue;
        else
            execute_ports_rest(engine);
    }
    driver_leave();
    return NULL;
}

static void execute_ports_visit(cuda_engine *engine)
{
    atomic_fetch_add(&engine->visitors, 1);
    pthread_mutex_lock(&engine->ports_lock);
}

static void execute_ports_leave(cuda_engine *engine)
{
    pthread_mutex_unlock(&engine->ports_lock);
    atomic_fetch_sub(&engine->visitors, 1);
}

/* One stream for each peer, shared by all plans. A device has few queues, and a stream that shared
 * one with a caller's would wait behind kernels that wait for these copies. */
static banyan_status find_streams(cuda_plan *plan)
{
    cuda_engine *engine = plan->engine;
    banyan_status status = BANYAN_OK;
    driver_capture before;
    RETURN_IF_FAILED(engine_enter(engine, &before));
    cuda_port *port = plan->ports;
    for (uint32_t i = 0; i < plan->shape.end_count && status == BANYAN_OK; i++) {
        if (!plan->ends[i].is_port)
            continue;
        if (plan->ends[i].is_remote) {
            port++->stream = remote_stream(engine->remote);
            continue;
        }
        CUstream *stream = &engine->port_streams[plan->ends[i].peer];
        if (!*stream)
            status = DRIVER(engine->device, cuStreamCreate, stream, CU_STREAM_NON_BLOCKING);
        port++->stream = *stream;
    }
    engine_leave(before);
    return status;
}

#define TRIAL_BYTES (UINT64_C(64) << 10)

/* Copy zeros to the counters, which are zero, and within the device, in all sizes from the
 * shortest to the longest kind of copy. */
static banyan_status try_copies(const cuda_port *port, const engine_end *end, int device,
                                CUdeviceptr zeros)
{
    static const uint64_t sizes[] = {1, 4, 16, 1000, TRIAL_BYTES / 2};
    RETURN_IF_FAILED(DRIVER(device, cuMemsetD8Async, zeros, 0, TRIAL_BYTES, port->stream));
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        RETURN_IF_FAILED(
            DRIVER(device, cuMemcpyAsync, zeros + TRIAL_BYTES / 2, zeros, sizes[i], port->stream));
    const CUdeviceptr sources[] = {zeros, (CUdeviceptr)port->values};
    for (int i = 0; i < 2 && end->outgoing && !end->is_remote; i++)
        RETURN_IF_FAILED(DRIVER(device, cuMemcpyAsync, (CUdeviceptr)end->outgoing, sources[i],
                                sizeof *end->outgoing, port->stream));
    RETURN_IF_FAILED(DRIVER(device, cuMemcpyAsync, port->done, (CUdeviceptr)port->values,
                            sizeof *port->values, port->stream));
    return DRIVER(device, cuStreamSynchronize, port->stream);
}

/* The driver may load its copy code at the first use, and then wait for all kernels of the device,
 * including those that will wait for these copies. */
static banyan_status try_streams(const cuda_plan *plan)
{
    const cuda_engine *engine = plan->engine;
    CUdeviceptr zeros;
    driver_capture before;
    RETURN_IF_FAILED(engine_take(engine, TRIAL_BYTES, &zeros));
    banyan_status status = engine_enter(engine, &before);
    if (status == BANYAN_OK) {
        const cuda_port *port = plan->ports;
        bool tried[ENGINE_RANKS_MAX] = {false};
        for (uint32_t i = 0; i < plan->shape.end_count && status == BANYAN_OK; i++) {
            const engine_end *end = &plan->ends[i];
            if (!end->is_port)
                continue;
            if (!tried[end->peer])
                status = try_copies(port, end, engine->device, zeros);
            tried[end->peer] = true;
            port++;
        }
        engine_leave(before);
    }
    engine_give_back(engine, zeros);
    return status;
}

static banyan_status ports_start(cuda_engine *engine)
{
    if (!engine->serves)
        RETURN_IF_FAILED(
            module_thread_start(&engine->proxy, execute_ports_serve, engine, "port channels"));
    engine->serves = true;
    return BANYAN_OK;
}

banyan_status ports_connect(void *opened)
{
    cuda_engine *engine = opened;
    RETURN_IF_FAILED(remote_open(engine->world, engine->device, &engine->remote));
    return banyan_module_agree(engine->world, ports_start(engine));
}

banyan_status ports_open(cuda_plan *plan)
{
    cuda_engine *engine = plan->engine;
    if (plan->port_count == 0 && !engine->remote)
        return BANYAN_OK;
    RETURN_IF_FAILED(find_streams(plan));
    RETURN_IF_FAILED(try_streams(plan));
    RETURN_IF_FAILED(ports_start(engine));
    execute_ports_visit(engine);
    plan->next_served = engine->served;
    engine->served = plan;
    execute_ports_leave(engine);
    return BANYAN_OK;
}

void ports_close(cuda_plan *plan)
{
    cuda_engine *engine = plan->engine;
    execute_ports_visit(engine);
    for (cuda_plan **at = &engine->served; *at; at = &(*at)->next_served) {
        if (*at == plan) {
            *at = plan->next_served;
            break;
        }
    }
    execute_ports_leave(engine);
}

void ports_end(cuda_engine *engine)
{
    driver_capture before;
    if (engine_enter(engine, &before) != BANYAN_OK)
        return;
    for (int i = 0; i < ENGINE_RANKS_MAX; i++) {
        if (!engine->port_streams[i])
            continue;
        driver.cuStreamSynchronize(engine->port_streams[i]);
        driver.cuStreamDestroy(engine->port_streams[i]);
    }
    engine_leave(before);
}

const char *ports_trouble(const cuda_plan *plan)
{
    for (uint32_t i = 0; i < plan->port_count; i++) {
        const cuda_port *port = &plan->ports[i];
        if (atomic_load_explicit(&port->broken, memory_order_acquire))
            return port->trouble;
    }
    return NULL;
}

/* Serve until everything is at its place in other nodes. */
static banyan_status drain_far(cuda_plan *plan)
{
    cuda_engine *engine = plan->engine;
    uint64_t ends_ns = module_now_ns() + engine->timeout_ns;
    for (bool is_idle = false; !is_idle;) {
        execute_ports_visit(engine);
        bool any = serve_plan(engine, plan);
        any |= remote_serve(engine->remote, execute_ports_find, engine);
        is_idle = !any && remote_is_idle(engine->remote);
        execute_ports_leave(engine);
        RETURN_IF_FAILED(banyan_world_check(engine->world));
        if (!is_idle && module_now_ns() > ends_ns)
            return banyan_error_set(BANYAN_ERR_TIMEOUT,
                                    "rank %d waited %.1f s for other nodes to take what its port "
                                    "channels put",
                                    plan->shape.rank, (double)engine->timeout_ns / 1e9);
        if (!any)
            execute_ports_nap();
    }
    return BANYAN_OK;
}

banyan_status ports_drain(cuda_plan *plan)
{
    cuda_engine *engine = plan->engine;
    if (plan->port_count == 0)
        return BANYAN_OK;
    banyan_status status = engine->remote ? drain_far(plan) : BANYAN_OK;
    if (status != BANYAN_OK)
        return status;
    execute_ports_visit(engine);
    serve_plan(engine, plan);
    for (uint32_t i = 0; i < plan->port_count && status == BANYAN_OK; i++)
        status = DRIVER(engine->device, cuStreamSynchronize, plan->ports[i].stream);
    execute_ports_leave(engine);
    return status;
}

void ports_reset(cuda_plan *plan)
{
    execute_ports_visit(plan->engine);
    for (uint32_t i = 0; i < plan->port_count; i++) {
        cuda_port *port = &plan->ports[i];
        memset(port->requests, 0, port->room * sizeof *port->requests);
        port->served = port->signals = port->passed = port->done_count = 0;
        atomic_store(&port->broken, false);
    }
    execute_ports_leave(plan->engine);
}
