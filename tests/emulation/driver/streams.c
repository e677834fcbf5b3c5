/* The emulated driver's streams, each a thread that executes its queue in order, with kernels as
 * fibers. The default stream belongs to its device, and other streams do not wait for it. */
#include "streams.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "room.h"

pthread_mutex_t streams_lock = PTHREAD_MUTEX_INITIALIZER;
CUstream streams;

void *emulated_take(size_t bytes)
{
    void *taken = calloc(1, bytes);
    if (!taken)
        abort();
    return taken;
}

static void copy_rows(const work *of)
{
    for (size_t row = 0; row < of->rows; row++)
        memmove(of->to + row * of->to_pitch, of->from + row * of->from_pitch, of->bytes);
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

static unsigned blocks_of(const work *of)
{
    return of->grid.x * of->grid.y * of->grid.z;
}

/* Called with the lock. If the next kernel may begin early, its blocks start when all blocks of
 * the running one have started, and wait for its end. */
static void begin_next_early(CUstream stream)
{
    work *next = stream->first;
    if (stream->runs_kernel && next && next->kind == WORK_KERNEL && next->early && !next->has_room)
        next->has_room = room_try(stream->context->device, blocks_of(next));
}

static void do_kernel(CUstream stream, const work *of)
{
    int device = stream->context->device;
    if (!of->has_room)
        room_take(device, blocks_of(of));
    pthread_mutex_lock(&stream->lock);
    stream->runs_kernel = true;
    begin_next_early(stream);
    pthread_mutex_unlock(&stream->lock);
    run_kernel(of);
    pthread_mutex_lock(&stream->lock);
    stream->runs_kernel = false;
    pthread_mutex_unlock(&stream->lock);
    room_give(device, blocks_of(of));
}

static void do_work(CUstream stream, const work *of)
{
    switch (of->kind) {
    case WORK_COPY:
        copy_rows(of);
        break;
    case WORK_FILL:
        memset(of->to, (int)of->value, of->bytes);
        break;
    case WORK_KERNEL:
        do_kernel(stream, of);
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

void work_free(work *old)
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
        do_work(stream, next);
        work_free(next);
        pthread_mutex_lock(&stream->lock);
        stream->done++;
        pthread_cond_broadcast(&stream->changed);
    }
    pthread_mutex_unlock(&stream->lock);
    return NULL;
}

static CUresult stream_make(CUcontext context, CUstream *stream)
{
    CUstream made = emulated_take(sizeof *made);
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

CUresult stream_find(CUstream given, CUstream *stream)
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

/* Every stream has its own thread, so no stream blocks another. */
CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority)
{
    (void)priority;
    return cuStreamCreate(stream, flags);
}

CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    *least = 0;
    *greatest = -5;
    return CUDA_SUCCESS;
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

CUresult stream_push(CUstream given, const work *wanted)
{
    CUstream stream;
    CUresult result = stream_find(given, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    work *added = emulated_take(sizeof *added);
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
        begin_next_early(stream);
        pthread_cond_broadcast(&stream->changed);
    }
    pthread_mutex_unlock(&stream->lock);
    return CUDA_SUCCESS;
}

/* Waiting for a stream that is being captured invalidates the capture. */
CUresult cuStreamSynchronize(CUstream given)
{
    CUstream stream;
    CUresult result = stream_find(given, &stream);
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
    CUresult result = stream_find(given, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    if (stream->capture)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    pthread_mutex_lock(&stream->lock);
    result = stream->done == stream->queued ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
    pthread_mutex_unlock(&stream->lock);
    return result;
}
