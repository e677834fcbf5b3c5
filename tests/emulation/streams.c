/* The emulated driver's streams, each a thread that takes what is queued in order; events, graphs,
 * and launches of kernels as fibers. A stream that is not given is one of its device's own, which
 * the others do not wait for. */
#include "state.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fibers.h"
#include "frontier.h"

typedef enum work_kind {
    WORK_COPY,
    WORK_FILL,
    WORK_KERNEL,
    WORK_RECORD,
    WORK_WAIT_EVENT,
    WORK_WRITE,
    WORK_WAIT_VALUE
} work_kind;

typedef struct work {
    work_kind kind;
    char *to;
    const char *from;
    size_t bytes, rows, to_pitch, from_pitch;
    uint64_t value;
    unsigned flags;
    CUevent event;
    uint64_t ticket; /* of the event */
    const struct emulated_kernel *kernel;
    void *argument; /* a copy of its own */
    fiber_index grid, block;
    size_t shared_bytes;
    frontier needs; /* in a graph */
    struct work *next;
} work;

/* What a stream is being captured into, or a finished capture. */
struct emulated_graph {
    work *first, **end;
    size_t count;
};

struct emulated_stream {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    work *first, **end;
    uint64_t queued, done;
    bool closing;
    CUgraph capture; /* NULL: none */
    frontier last;   /* what the next captured work waits for */
    bool is_origin;
    CUcontext context;
    struct emulated_stream *next;
};

struct emulated_event {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t recorded, reached; /* tickets */
    struct timespec at;
    CUgraph capture; /* that it was last recorded in */
    frontier last;   /* and what it stands for there */
    bool in_graph;   /* what it waits for is in a graph: nobody waits for it outside */
};

struct emulated_kernel {
    void (*call)(const void *args);
    size_t args_bytes;
};

static pthread_mutex_t streams_lock = PTHREAD_MUTEX_INITIALIZER;
static CUstream streams;
static __thread CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

static void *take(size_t bytes)
{
    void *taken = calloc(1, bytes);
    if (!taken)
        abort();
    return taken;
}

/* ---- doing the work ---- */

static void copy_rows(const work *of)
{
    for (size_t row = 0; row < of->rows; row++)
        memmove(of->to + row * of->to_pitch, of->from + row * of->from_pitch, of->bytes);
}

static void event_reach(CUevent event, uint64_t ticket)
{
    pthread_mutex_lock(&event->lock);
    if (ticket > event->reached) {
        event->reached = ticket;
        clock_gettime(CLOCK_MONOTONIC, &event->at);
    }
    pthread_cond_broadcast(&event->changed);
    pthread_mutex_unlock(&event->lock);
}

static void event_wait(CUevent event, uint64_t ticket)
{
    pthread_mutex_lock(&event->lock);
    while (event->reached < ticket)
        pthread_cond_wait(&event->changed, &event->lock);
    pthread_mutex_unlock(&event->lock);
}

static void wait_value(const work *of)
{
    const uint64_t *at = (const uint64_t *)(const void *)of->to;
    for (;;) {
        uint64_t now = __atomic_load_n(at, __ATOMIC_ACQUIRE);
        if (of->flags == CU_STREAM_WAIT_VALUE_EQ ? now == of->value
                                                 : (int64_t)(now - of->value) >= 0)
            return;
        sched_yield();
    }
}

static void run_kernel(const work *of)
{
    static uint64_t launches;
    const char *wanted = getenv("BANYAN_EMULATED_SEED");
    uint64_t seed = wanted ? strtoull(wanted, NULL, 10) : 0;
    if (seed)
        seed = seed * 0x9E3779B97F4A7C15u + __atomic_add_fetch(&launches, 1, __ATOMIC_RELAXED);
    fibers_run(of->grid, of->block, of->shared_bytes, of->kernel->call, of->argument, seed);
}

static void do_work(const work *of)
{
    switch (of->kind) {
    case WORK_COPY:
        copy_rows(of);
        break;
    case WORK_FILL:
        memset(of->to, (int)of->value, of->bytes);
        break;
    case WORK_KERNEL:
        run_kernel(of);
        break;
    case WORK_RECORD:
        event_reach(of->event, of->ticket);
        break;
    case WORK_WAIT_EVENT:
        event_wait(of->event, of->ticket);
        break;
    case WORK_WRITE:
        __atomic_store_n((uint64_t *)(void *)of->to, of->value, __ATOMIC_RELEASE);
        break;
    case WORK_WAIT_VALUE:
        wait_value(of);
        break;
    }
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

static void work_free(work *old)
{
    frontier_free(&old->needs);
    free(old->argument);
    free(old);
}

static void *stream_main(void *argument)
{
    CUstream stream = argument;
    pthread_mutex_lock(&stream->lock);
    for (;;) {
        while (!stream->first && !stream->closing)
            pthread_cond_wait(&stream->changed, &stream->lock);
        work *next = stream->first;
        if (!next)
            break;
        stream->first = next->next;
        if (!stream->first)
            stream->end = &stream->first;
        pthread_mutex_unlock(&stream->lock);
        do_work(next);
        work_free(next);
        pthread_mutex_lock(&stream->lock);
        stream->done++;
        pthread_cond_broadcast(&stream->changed);
    }
    pthread_mutex_unlock(&stream->lock);
    return NULL;
}

/* ---- streams ---- */

static CUresult stream_make(CUcontext context, CUstream *stream)
{
    CUstream made = take(sizeof *made);
    pthread_mutex_init(&made->lock, NULL);
    pthread_cond_init(&made->changed, NULL);
    made->end = &made->first;
    made->context = context;
    if (pthread_create(&made->thread, NULL, stream_main, made) != 0) {
        free(made);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    pthread_mutex_lock(&streams_lock);
    made->next = streams;
    streams = made;
    pthread_mutex_unlock(&streams_lock);
    *stream = made;
    return CUDA_SUCCESS;
}

CUresult cuStreamCreate(CUstream *stream, unsigned flags)
{
    (void)flags;
    if (!emulated_current())
        return CUDA_ERROR_INVALID_CONTEXT;
    return stream_make(emulated_current(), stream);
}

/* NULL, and the other two names of the default streams, are the device's own. */
static CUresult find_stream(CUstream given, CUstream *stream)
{
    *stream = given;
    if ((uintptr_t)given > 2)
        return CUDA_SUCCESS;
    CUcontext context = emulated_current();
    if (!context)
        return CUDA_ERROR_INVALID_CONTEXT;
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    if (!context->null_stream)
        result = stream_make(context, &context->null_stream);
    *stream = context->null_stream;
    pthread_mutex_unlock(&lock);
    return result;
}

static void stream_drain(CUstream stream)
{
    pthread_mutex_lock(&stream->lock);
    uint64_t all = stream->queued;
    while (stream->done < all)
        pthread_cond_wait(&stream->changed, &stream->lock);
    pthread_mutex_unlock(&stream->lock);
}

CUresult cuStreamDestroy(CUstream stream)
{
    pthread_mutex_lock(&stream->lock);
    stream->closing = true;
    pthread_cond_broadcast(&stream->changed);
    pthread_mutex_unlock(&stream->lock);
    pthread_join(stream->thread, NULL);
    pthread_mutex_lock(&streams_lock);
    CUstream *at = &streams;
    while (*at != stream)
        at = &(*at)->next;
    *at = stream->next;
    pthread_mutex_unlock(&streams_lock);
    free(stream);
    return CUDA_SUCCESS;
}

void emulated_wait_for_all(void)
{
    pthread_mutex_lock(&streams_lock);
    for (CUstream at = streams; at; at = at->next)
        if (at->context == emulated_current())
            stream_drain(at);
    pthread_mutex_unlock(&streams_lock);
}

static CUresult push(CUstream given, const work *wanted)
{
    CUstream stream;
    CUresult result = find_stream(given, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    work *added = take(sizeof *added);
    *added = *wanted;
    added->next = NULL;
    pthread_mutex_lock(&stream->lock);
    if (stream->capture) {
        frontier_add(&added->needs, &stream->last);
        frontier_set(&stream->last, stream->capture->count++);
        *stream->capture->end = added;
        stream->capture->end = &added->next;
    } else {
        *stream->end = added;
        stream->end = &added->next;
        stream->queued++;
        pthread_cond_broadcast(&stream->changed);
    }
    pthread_mutex_unlock(&stream->lock);
    return CUDA_SUCCESS;
}

/* Waiting for a stream that is being captured spoils the capture. */
CUresult cuStreamSynchronize(CUstream given)
{
    CUstream stream;
    CUresult result = find_stream(given, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    if (stream->capture)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    stream_drain(stream);
    return CUDA_SUCCESS;
}

CUresult cuStreamQuery(CUstream given)
{
    CUstream stream;
    CUresult result = find_stream(given, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    if (stream->capture)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    pthread_mutex_lock(&stream->lock);
    result = stream->done == stream->queued ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
    pthread_mutex_unlock(&stream->lock);
    return result;
}

/* ---- copies and values ---- */

CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    return push(stream, &(work){.kind = WORK_COPY,
                                .to = (char *)(uintptr_t)to,
                                .from = (const char *)(uintptr_t)from,
                                .bytes = bytes,
                                .rows = 1});
}

CUresult cuMemcpy2DAsync(const CUDA_MEMCPY2D *copy, CUstream stream)
{
    const char *from = copy->srcMemoryType == CU_MEMORYTYPE_HOST
                           ? copy->srcHost
                           : (const char *)(uintptr_t)copy->srcDevice;
    char *to = copy->dstMemoryType == CU_MEMORYTYPE_HOST ? copy->dstHost
                                                         : (char *)(uintptr_t)copy->dstDevice;
    return push(stream, &(work){.kind = WORK_COPY,
                                .to = to + copy->dstY * copy->dstPitch + copy->dstXInBytes,
                                .from = from + copy->srcY * copy->srcPitch + copy->srcXInBytes,
                                .bytes = copy->WidthInBytes,
                                .rows = copy->Height,
                                .to_pitch = copy->dstPitch,
                                .from_pitch = copy->srcPitch});
}

CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream)
{
    return push(
        stream,
        &(work){.kind = WORK_FILL, .to = (char *)(uintptr_t)to, .value = value, .bytes = bytes});
}

CUresult cuStreamWriteValue64(CUstream stream, CUdeviceptr address, cuuint64_t value,
                              unsigned flags)
{
    (void)flags;
    if (!emulated_takes_values(address))
        return CUDA_ERROR_INVALID_VALUE;
    return push(stream,
                &(work){.kind = WORK_WRITE, .to = (char *)(uintptr_t)address, .value = value});
}

CUresult cuStreamWaitValue64(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags)
{
    if (!emulated_takes_values(address))
        return CUDA_ERROR_INVALID_VALUE;
    return push(stream, &(work){.kind = WORK_WAIT_VALUE,
                                .to = (char *)(uintptr_t)address,
                                .value = value,
                                .flags = flags});
}

/* ---- events ---- */

CUresult cuEventCreate(CUevent *event, unsigned flags)
{
    (void)flags;
    CUevent made = take(sizeof *made);
    pthread_mutex_init(&made->lock, NULL);
    pthread_cond_init(&made->changed, NULL);
    *event = made;
    return CUDA_SUCCESS;
}

CUresult cuEventDestroy(CUevent event)
{
    event_wait(event, event->in_graph ? 0 : event->recorded);
    frontier_free(&event->last);
    free(event);
    return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent event, CUstream given)
{
    CUstream stream;
    CUresult result = find_stream(given, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    event->capture = stream->capture;
    event->in_graph = stream->capture != NULL;
    frontier_free(&event->last);
    frontier_add(&event->last, &stream->last);
    if (stream->capture)
        return CUDA_SUCCESS;
    pthread_mutex_lock(&event->lock);
    uint64_t ticket = ++event->recorded;
    pthread_mutex_unlock(&event->lock);
    return push(stream, &(work){.kind = WORK_RECORD, .event = event, .ticket = ticket});
}

CUresult cuStreamWaitEvent(CUstream given, CUevent event, unsigned flags)
{
    (void)flags;
    CUstream stream;
    CUresult result = find_stream(given, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    if (event->in_graph) {
        if (stream->capture && stream->capture != event->capture)
            return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        stream->capture = event->capture;
        frontier_add(&stream->last, &event->last);
        return CUDA_SUCCESS;
    }
    if (stream->capture) /* the graph would not know of it */
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    return push(stream,
                &(work){.kind = WORK_WAIT_EVENT, .event = event, .ticket = event->recorded});
}

CUresult cuEventQuery(CUevent event)
{
    if (event->in_graph)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    pthread_mutex_lock(&event->lock);
    bool reached = event->reached >= event->recorded;
    pthread_mutex_unlock(&event->lock);
    return reached ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuEventSynchronize(CUevent event)
{
    if (event->in_graph)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    event_wait(event, event->recorded);
    return CUDA_SUCCESS;
}

CUresult cuEventElapsedTime(float *ms, CUevent begin, CUevent end)
{
    if (cuEventQuery(begin) != CUDA_SUCCESS || cuEventQuery(end) != CUDA_SUCCESS)
        return CUDA_ERROR_NOT_READY;
    *ms = (float)((double)(end->at.tv_sec - begin->at.tv_sec) * 1e3 +
                  (double)(end->at.tv_nsec - begin->at.tv_nsec) * 1e-6);
    return CUDA_SUCCESS;
}

/* ---- graphs: a list of work that is queued again and again ---- */

CUresult cuStreamIsCapturing(CUstream given, CUstreamCaptureStatus *status)
{
    CUstream stream;
    CUresult result = find_stream(given, &stream);
    if (result == CUDA_SUCCESS)
        *status = stream->capture ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
    return result;
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    CUstreamCaptureMode before = capture_mode;
    capture_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}

/* The default stream cannot be captured. */
CUresult cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode mode)
{
    (void)mode;
    if ((uintptr_t)stream <= 2 || stream->capture)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    stream->capture = take(sizeof *stream->capture);
    stream->capture->end = &stream->capture->first;
    stream->is_origin = true;
    return CUDA_SUCCESS;
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
    if (!stream->capture || !stream->is_origin)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    *graph = stream->capture;
    stream->is_origin = false;
    pthread_mutex_lock(&streams_lock);
    for (CUstream at = streams; at; at = at->next)
        if (at->capture == *graph) {
            at->capture = NULL;
            frontier_free(&at->last);
        }
    pthread_mutex_unlock(&streams_lock);
    return CUDA_SUCCESS;
}

static work *work_copy(const work *of)
{
    work *copy = take(sizeof *copy);
    *copy = *of;
    copy->next = NULL;
    copy->needs = (frontier){0};
    if (of->argument) {
        copy->argument = take(of->kernel->args_bytes + 64);
        memcpy(copy->argument, of->argument, of->kernel->args_bytes);
    }
    return copy;
}

/* Another order for every graph and device, as far as what waits for what allows. */
static uint64_t order_seed(void)
{
    static uint64_t graphs;
    const char *wanted = getenv("BANYAN_EMULATED_GRAPH_SEED");
    uint64_t seed = wanted ? strtoull(wanted, NULL, 10) : 0;
    if (seed == 0)
        return 0;
    uint64_t number = __atomic_add_fetch(&graphs, 1, __ATOMIC_RELAXED);
    return seed * UINT64_C(0x9E3779B97F4A7C15) + number * 64 +
           (uint64_t)(emulated_current() ? emulated_current()->device : 0);
}

static void order_nodes(const work **nodes, size_t count, uint64_t seed)
{
    frontier *needs = take((count + 1) * sizeof *needs);
    size_t *order = take((count + 1) * sizeof *order);
    const work **before = take((count + 1) * sizeof *before);
    for (size_t i = 0; i < count; i++) {
        needs[i] = nodes[i]->needs;
        before[i] = nodes[i];
    }
    frontier_order(needs, count, seed, order);
    for (size_t i = 0; i < count; i++)
        nodes[i] = before[order[i]];
    free(needs);
    free(order);
    free(before);
}

/* A graph runs one node after the other. */
CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
    (void)flags;
    const work **nodes = take((graph->count + 1) * sizeof *nodes);
    size_t count = 0;
    for (const work *at = graph->first; at; at = at->next)
        nodes[count++] = at;
    uint64_t seed = order_seed();
    if (seed != 0)
        order_nodes(nodes, count, seed);
    CUgraphExec made = take(sizeof *made);
    made->end = &made->first;
    for (size_t i = 0; i < count; i++) {
        *made->end = work_copy(nodes[i]);
        made->end = &(*made->end)->next;
    }
    free(nodes);
    *exec = made;
    return CUDA_SUCCESS;
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
    for (const work *at = exec->first; at; at = at->next) {
        work *copy = work_copy(at);
        CUresult result = push(stream, copy);
        free(copy); /* what it points to is the stream's now */
        if (result != CUDA_SUCCESS)
            return result;
    }
    return CUDA_SUCCESS;
}

CUresult cuGraphDestroy(CUgraph graph)
{
    for (work *at = graph->first, *next; at; at = next) {
        next = at->next;
        work_free(at);
    }
    free(graph);
    return CUDA_SUCCESS;
}

CUresult cuGraphExecDestroy(CUgraphExec exec)
{
    emulated_wait_for_all();
    return cuGraphDestroy(exec);
}

/* ---- kernels ---- */

CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction kernel)
{
    (void)kernel;
    *value = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? EMULATED_THREADS_MAX
             : attribute == CU_FUNC_ATTRIBUTE_NUM_REGS            ? 64
                                                                  : 227 << 10;
    return CUDA_SUCCESS;
}

CUresult cuFuncSetAttribute(CUfunction kernel, CUfunction_attribute attribute, int value)
{
    (void)kernel, (void)attribute;
    return value <= 227 << 10 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction kernel, int threads,
                                                     size_t shared_bytes)
{
    (void)kernel;
    *blocks = threads > EMULATED_THREADS_MAX || shared_bytes > 227 << 10
                  ? 0
                  : EMULATED_BLOCKS_A_MULTIPROCESSOR;
    return CUDA_SUCCESS;
}

CUresult cuLaunchKernel(CUfunction kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                        unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                        CUstream stream, void **params, void **extra)
{
    (void)extra;
    if (block_x * block_y * block_z > EMULATED_THREADS_MAX || grid_x * grid_y * grid_z == 0)
        return CUDA_ERROR_INVALID_VALUE;
    void *argument = aligned_alloc(64, (kernel->args_bytes + 63) / 64 * 64);
    if (!argument)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memcpy(argument, params[0], kernel->args_bytes);
    CUresult result = push(stream, &(work){.kind = WORK_KERNEL,
                                           .kernel = kernel,
                                           .argument = argument,
                                           .grid = {grid_x, grid_y, grid_z},
                                           .block = {block_x, block_y, block_z},
                                           .shared_bytes = shared_bytes});
    if (result != CUDA_SUCCESS)
        free(argument);
    return result;
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction kernel, void **params,
                          void **extra)
{
    return cuLaunchKernel(kernel, config->gridDimX, config->gridDimY, config->gridDimZ,
                          config->blockDimX, config->blockDimY, config->blockDimZ,
                          config->sharedMemBytes, config->hStream, params, extra);
}
