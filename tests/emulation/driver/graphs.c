/* The emulated driver's graphs: lists of work that can be queued repeatedly. */
#include <stdlib.h>
#include <string.h>

#include "streams.h"

static __thread CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

/* Number of captures that are not RELAXED: this thread's, and the GLOBAL ones of all threads. */
static __thread int own_captures;
static int global_captures;

bool emulated_capture_forbids(void)
{
    if (capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED)
        return false;
    return own_captures > 0 || (capture_mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
                                __atomic_load_n(&global_captures, __ATOMIC_RELAXED) > 0);
}

static void count_capture(CUstreamCaptureMode mode, int more)
{
    if (mode != CU_STREAM_CAPTURE_MODE_RELAXED)
        own_captures += more;
    if (mode == CU_STREAM_CAPTURE_MODE_GLOBAL)
        __atomic_fetch_add(&global_captures, more, __ATOMIC_RELAXED);
}

CUresult cuStreamIsCapturing(CUstream given, CUstreamCaptureStatus *status)
{
    CUstream stream;
    CUresult result = stream_find(given, &stream);
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
    if ((uintptr_t)stream <= 2 || stream->capture)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    stream->capture = emulated_take(sizeof *stream->capture);
    stream->capture->end = &stream->capture->first;
    stream->is_origin = true;
    stream->capture_mode = mode;
    count_capture(mode, 1);
    return CUDA_SUCCESS;
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
    if (!stream->capture || !stream->is_origin)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    *graph = stream->capture;
    stream->is_origin = false;
    count_capture(stream->capture_mode, -1);
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
    work *copy = emulated_take(sizeof *copy);
    *copy = *of;
    copy->next = NULL;
    copy->needs = (frontier){0};
    if (of->argument) {
        copy->argument = emulated_take(of->kernel->args_bytes + 64);
        memcpy(copy->argument, of->argument, of->kernel->args_bytes);
    }
    return copy;
}

/* A different order for every graph and device, as far as dependencies permit. */
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
    frontier *needs = emulated_take((count + 1) * sizeof *needs);
    size_t *order = emulated_take((count + 1) * sizeof *order);
    const work **before = emulated_take((count + 1) * sizeof *before);
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

/* A graph runs one node after another. */
CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
    (void)flags;
    const work **nodes = emulated_take((graph->count + 1) * sizeof *nodes);
    size_t count = 0;
    for (const work *at = graph->first; at; at = at->next)
        nodes[count++] = at;
    uint64_t seed = order_seed();
    if (seed != 0)
        order_nodes(nodes, count, seed);
    CUgraphExec made = emulated_take(sizeof *made);
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
        CUresult result = stream_push(stream, copy);
        free(copy); /* the stream now owns its contents */
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
