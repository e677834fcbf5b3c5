#include "cuda/runtime/replay.h"

#include <stdlib.h>

#include "cuda/driver.h"

typedef struct recording {
    int device;
    CUstream stream;
    CUevent begin, end;
    CUgraphExec graph;
} recording;

static banyan_status queue_all(recording *made, banyan_status (*queue)(void *, void *),
                               void *context, uint32_t times)
{
    for (uint32_t i = 0; i < times; i++)
        RETURN_IF_FAILED(queue(context, made->stream));
    return BANYAN_OK;
}

/* Always end the capture. */
static banyan_status runtime_replay_capture(recording *made, banyan_status (*queue)(void *, void *),
                                            void *context, uint32_t times)
{
    int device = made->device;
    CUgraph graph = NULL;
    RETURN_IF_FAILED(
        DRIVER(device, cuStreamBeginCapture, made->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    banyan_status status = queue_all(made, queue, context, times);
    CUresult result = driver.cuStreamEndCapture(made->stream, &graph);
    if (status == BANYAN_OK)
        status = driver_check(result, "cuStreamEndCapture", device);
    if (status == BANYAN_OK)
        status = DRIVER(device, cuGraphInstantiateWithFlags, &made->graph, graph, 0);
    if (graph)
        driver.cuGraphDestroy(graph);
    return status;
}

static banyan_status runtime_replay_prepare(recording *made, banyan_status (*queue)(void *, void *),
                                            void *context, uint32_t times)
{
    int device = made->device;
    RETURN_IF_FAILED(DRIVER(device, cuStreamCreate, &made->stream, CU_STREAM_NON_BLOCKING));
    RETURN_IF_FAILED(DRIVER(device, cuEventCreate, &made->begin, CU_EVENT_DEFAULT));
    RETURN_IF_FAILED(DRIVER(device, cuEventCreate, &made->end, CU_EVENT_DEFAULT));
    return runtime_replay_capture(made, queue, context, times);
}

void replay_forget(void *recorded)
{
    recording *old = recorded;
    if (!old)
        return;
    if (driver_enter(old->device) == BANYAN_OK) {
        if (old->graph)
            driver.cuGraphExecDestroy(old->graph);
        if (old->end)
            driver.cuEventDestroy(old->end);
        if (old->begin)
            driver.cuEventDestroy(old->begin);
        if (old->stream)
            driver.cuStreamDestroy(old->stream);
        driver_leave();
    }
    free(old);
}

banyan_status replay_record(int device, banyan_status (*queue)(void *context, void *stream),
                            void *context, uint32_t times, void **recorded)
{
    recording *made = calloc(1, sizeof *made);
    if (!made)
        return banyan_error_set(BANYAN_ERR_NO_MEMORY, "cuda: no memory for a recording");
    made->device = device;
    banyan_status status =
        DRIVER_WITHIN(made->device, runtime_replay_prepare(made, queue, context, times));
    if (status != BANYAN_OK) {
        replay_forget(made);
        return status;
    }
    *recorded = made;
    return BANYAN_OK;
}

static banyan_status runtime_replay_play(const recording *of, bool together, float *ms)
{
    int device = of->device;
    if (together)
        RETURN_IF_FAILED(DRIVER(device, cuGraphLaunch, of->graph, of->stream));
    RETURN_IF_FAILED(DRIVER(device, cuEventRecord, of->begin, of->stream));
    RETURN_IF_FAILED(DRIVER(device, cuGraphLaunch, of->graph, of->stream));
    RETURN_IF_FAILED(DRIVER(device, cuEventRecord, of->end, of->stream));
    RETURN_IF_FAILED(DRIVER(device, cuStreamSynchronize, of->stream));
    return DRIVER(device, cuEventElapsedTime, ms, of->begin, of->end);
}

static banyan_status enter_and_play(const recording *of, bool together, uint64_t *ns)
{
    float ms = 0;
    banyan_status status = DRIVER_WITHIN(of->device, runtime_replay_play(of, together, &ms));
    *ns = (uint64_t)((double)ms * 1e6);
    return status;
}

banyan_status replay_play(void *recorded, uint64_t *ns)
{
    return enter_and_play(recorded, false, ns);
}

banyan_status replay_play_together(void *recorded, uint64_t *ns)
{
    return enter_and_play(recorded, true, ns);
}
