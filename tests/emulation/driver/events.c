/* The emulated driver's events: tickets that a stream has reached. */
#include <stdlib.h>

#include "streams.h"

void event_reach(CUevent event, uint64_t ticket)
{
    pthread_mutex_lock(&event->lock);
    if (ticket > event->reached) {
        event->reached = ticket;
        clock_gettime(CLOCK_MONOTONIC, &event->at);
    }
    pthread_cond_broadcast(&event->changed);
    pthread_mutex_unlock(&event->lock);
}

void event_wait(CUevent event, uint64_t ticket)
{
    pthread_mutex_lock(&event->lock);
    while (event->reached < ticket)
        pthread_cond_wait(&event->changed, &event->lock);
    pthread_mutex_unlock(&event->lock);
}

CUresult cuEventCreate(CUevent *event, unsigned flags)
{
    (void)flags;
    CUevent made = emulated_take(sizeof *made);
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
    CUresult result = stream_find(given, &stream);
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
    return stream_push(stream, &(work){.kind = WORK_RECORD, .event = event, .ticket = ticket});
}

CUresult cuStreamWaitEvent(CUstream given, CUevent event, unsigned flags)
{
    (void)flags;
    CUstream stream;
    CUresult result = stream_find(given, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    if (event->in_graph) {
        if (stream->capture && stream->capture != event->capture)
            return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        stream->capture = event->capture;
        frontier_add(&stream->last, &event->last);
        return CUDA_SUCCESS;
    }
    if (stream->capture) /* the graph would not contain it */
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    return stream_push(stream,
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
