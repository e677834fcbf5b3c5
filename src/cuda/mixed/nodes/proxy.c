#include "cuda/mixed/nodes/nodes.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cuda/memory/memory.h"
#include "cuda/runtime/watch.h"

#define ROOM 1024 /* most pending requests to a rank */
/* Polls without progress before the thread naps between polls, and the length of a nap. */
#define LOOKS 4000
#define NAP_NS 20000L

struct nodes_proxy {
    int device, ranks;
    const nvshmem_part *part;
    CUstream stream;
    banyan_port_queue *queues;     /* in device memory */
    banyan_port_request *requests; /* pinned, ROOM for each rank */
    uint64_t *done;                /* pinned, a cache line for each rank */
    void *pinned;
    atomic_bool ends;
    bool has_thread;
    pthread_t thread;
    struct {
        sem_t is_known;
        banyan_status status; /* of entering the device */
        char reason[256];
    } entered;
};

#define DONE_APART (64 / sizeof(uint64_t))

static banyan_port_request *requests_of(const nodes_proxy *proxy, int rank)
{
    return proxy->requests + (size_t)rank * ROOM;
}

static bool proxy_serve(nodes_proxy *proxy, int rank)
{
    uint64_t *done = &proxy->done[(size_t)rank * DONE_APART], served = *done;
    const banyan_port_request *request = &requests_of(proxy, rank)[served % ROOM];
    if (__atomic_load_n(&request->number, __ATOMIC_ACQUIRE) != served + 1)
        return false;
    proxy->part->functions->nvshmemx_putmem_signal_on_stream(
        request->destination, request->source, request->bytes, request->signal, request->run,
        NVSHMEM_SET, proxy->part->pes[rank], proxy->stream);
    __atomic_store_n(done, served + 1, __ATOMIC_RELEASE);
    return true;
}

static bool proxy_serve_all(nodes_proxy *proxy)
{
    bool any = false;
    for (int rank = 0; rank < proxy->ranks; rank++)
        any |= proxy_serve(proxy, rank);
    return any;
}

static bool enter_and_report(nodes_proxy *proxy)
{
    banyan_status status = driver_enter(proxy->device);
    if (status != BANYAN_OK)
        snprintf(proxy->entered.reason, sizeof proxy->entered.reason, "%s", banyan_last_error());
    proxy->entered.status = status;
    sem_post(&proxy->entered.is_known);
    return status == BANYAN_OK;
}

static void *serve_main(void *argument)
{
    nodes_proxy *proxy = argument;
    if (!enter_and_report(proxy))
        return NULL;
    driver_capture_relax();
    for (uint32_t idle = 0; !atomic_load(&proxy->ends);) {
        if (proxy_serve_all(proxy))
            idle = 0;
        else if (idle++ >= LOOKS)
            nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
    }
    while (proxy_serve_all(proxy))
        ;
    driver_leave();
    return NULL;
}

static banyan_status proxy_take_memory(nodes_proxy *proxy)
{
    size_t ranks = (size_t)proxy->ranks, queue_bytes = ranks * sizeof(banyan_port_queue);
    size_t request_bytes = ranks * ROOM * sizeof(banyan_port_request);
    size_t done_bytes = ranks * DONE_APART * sizeof(uint64_t);
    void *queues;
    RETURN_IF_FAILED(cuda_memory_ops.alloc(proxy->device, queue_bytes, &queues));
    proxy->queues = queues;
    void *same; /* one address on host and device */
    RETURN_IF_FAILED(
        pinned_alloc(proxy->device, request_bytes + done_bytes, &proxy->pinned, &same));
    proxy->requests = proxy->pinned;
    proxy->done = (uint64_t *)(void *)((char *)proxy->pinned + request_bytes);
    banyan_port_queue *made = calloc(ranks, sizeof *made);
    if (!made)
        return banyan_error_set(BANYAN_ERR_NO_MEMORY, "cuda: no memory for %zu queues", ranks);
    for (int rank = 0; rank < proxy->ranks; rank++)
        made[rank] = (banyan_port_queue){.capacity = ROOM,
                                         .requests = requests_of(proxy, rank),
                                         .done = &proxy->done[(size_t)rank * DONE_APART]};
    banyan_status status = cuda_memory_ops.copy(proxy->queues, made, queue_bytes);
    free(made);
    return status;
}

/* Use the highest priority, so that the stream shares no device queue with a caller's stream. A
 * put behind a kernel queued there would wait for a kernel that waits for the put. */
static banyan_status make_stream(nodes_proxy *proxy)
{
    int least = 0, greatest = 0;
    RETURN_IF_FAILED(DRIVER(proxy->device, cuCtxGetStreamPriorityRange, &least, &greatest));
    return DRIVER(proxy->device, cuStreamCreateWithPriority, &proxy->stream, CU_STREAM_NON_BLOCKING,
                  greatest);
}

/* NVSHMEM and the driver may load code for the first put, and wait for all kernels to end. */
static banyan_status try_puts(const nodes_proxy *proxy, char *trial)
{
    for (int rank = 0; rank < proxy->ranks; rank++)
        proxy->part->functions->nvshmemx_putmem_signal_on_stream(
            trial, trial, sizeof(uint64_t), (uint64_t *)(void *)trial + 1, 0, NVSHMEM_SET,
            proxy->part->pes[rank], proxy->stream);
    return DRIVER(proxy->device, cuStreamSynchronize, proxy->stream);
}

static banyan_status start_thread(nodes_proxy *proxy)
{
    RETURN_IF_FAILED(module_thread_start(&proxy->thread, serve_main, proxy, "NVSHMEM's puts"));
    proxy->has_thread = true;
    while (sem_wait(&proxy->entered.is_known) != 0)
        ; /* a signal arrived */
    return proxy->entered.status == BANYAN_OK
               ? BANYAN_OK
               : banyan_error_set(proxy->entered.status, "a thread for NVSHMEM's puts: %s",
                                  proxy->entered.reason);
}

banyan_status nodes_proxy_start(int device, const nvshmem_part *part, int ranks, char *trial,
                                nodes_proxy **proxy)
{
    nodes_proxy *made = calloc(1, sizeof *made);
    if (!made)
        return banyan_error_set(BANYAN_ERR_NO_MEMORY, "cuda: no memory for NVSHMEM's puts");
    made->device = device;
    made->ranks = ranks;
    made->part = part;
    sem_init(&made->entered.is_known, 0, 0);
    banyan_status status = proxy_take_memory(made);
    if (status == BANYAN_OK)
        status = make_stream(made);
    if (status == BANYAN_OK)
        status = try_puts(made, trial);
    if (status == BANYAN_OK)
        status = start_thread(made);
    if (status != BANYAN_OK) {
        nodes_proxy_end(made);
        return status;
    }
    *proxy = made;
    return BANYAN_OK;
}

banyan_port_queue *nodes_proxy_queues(const nodes_proxy *proxy)
{
    return proxy->queues;
}

/* A put that a peer never accepts must not block the end: it is left with its stream. */
void nodes_proxy_end(nodes_proxy *proxy)
{
    if (!proxy)
        return;
    atomic_store(&proxy->ends, true);
    if (proxy->has_thread)
        pthread_join(proxy->thread, NULL);
    if (driver_enter(proxy->device) == BANYAN_OK) {
        if (proxy->stream)
            driver.cuStreamDestroy(proxy->stream);
        if (proxy->queues)
            cuda_memory_ops.free(proxy->device, proxy->queues);
        pinned_free(proxy->pinned);
        driver_leave();
    }
    sem_destroy(&proxy->entered.is_known);
    free(proxy);
}
