#include "channel/port.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "channel/packet.h"
#include "core/deadline.h"
#include "core/error.h"
#include "core/threads/thread.h"
#include "memory/stream.h"

/* Capacity of a queue; a power of two. */
#define REQUESTS 128
/* Bytes that a queue moves before it is the next queue's turn. */
#define TURN_BYTES ((uint64_t)1 << 20)
#define SLICE_MULTIPLE 64

/* A ring with one poster and one server. Each increments its own counter, and reads the other's
 * cache line only when it must. */
struct port_queue {
    port_proxy *proxy;
    port_queue *next; /* in the inbox, then in the proxy's list */

    _Alignas(64) _Atomic uint64_t posted;
    uint64_t done_seen; /* by the poster */
    _Atomic bool closed;

    _Alignas(64) _Atomic uint64_t done;
    uint64_t moved; /* bytes of the request that is being served */
    _Atomic bool left;

    port_request requests[REQUESTS];
};

struct port_proxy {
    wake_up door; /* wakes the thread */
    wake_up *own;
    uint32_t spins;
    bool running;
    pthread_t thread;
    _Atomic(port_queue *) inbox; /* queues that the thread has not adopted yet */
    _Atomic bool stop;
    port_queue *queues; /* the thread's */
};

/* Return the number of bytes moved: all, except packets that have not arrived. */
static uint64_t move_slice(const port_request *request, uint64_t moved, uint64_t bytes)
{
    const char *from = request->source;
    char *to = request->destination;
    uint64_t packets_moved = packets_room(moved);
    switch (request->kind) {
    case PORT_PUT_PACKETS:
        packets_write(to + packets_moved, from + moved, bytes, request->flag);
        wake_up_doorbell(request->peer);
        break;
    case PORT_FORWARD_PACKETS:
        bytes = packets_forward(to + packets_moved, request->flag, from + packets_moved, bytes,
                                request->flag);
        wake_up_doorbell(request->peer);
        break;
    default:
        if (stream_is_worthwhile(request->bytes))
            stream_past_cache(to + moved, from + moved, bytes);
        else
            stream_copy(to + moved, from + moved, bytes);
    }
    return bytes;
}

/* Slices end at packet boundaries. */
static uint64_t slice_bytes(uint64_t rest, uint64_t turn)
{
    return rest <= turn ? rest : turn & ~(uint64_t)(SLICE_MULTIPLE - 1);
}

/* Process as much of the request as the turn has bytes left. True when it is done: its writes are
 * ordered before all later signals. */
static bool serve_request(port_queue *queue, const port_request *request, uint64_t *turn)
{
    if (request->kind == PORT_SIGNAL) {
        counter_add(request->signal, 1);
        wake_up_doorbell(request->peer);
        return true;
    }
    uint64_t rest = request->bytes - queue->moved, some = slice_bytes(rest, *turn);
    some = move_slice(request, queue->moved, some);
    queue->moved += some;
    *turn -= some;
    if (some < rest)
        return false;
    if (request->kind == PORT_PUT && stream_is_worthwhile(request->bytes))
        stream_fence();
    queue->moved = 0;
    return true;
}

/* Serve a queue's turn. False when there was nothing to do. */
static bool serve_queue(port_proxy *proxy, port_queue *queue)
{
    uint64_t first = atomic_load_explicit(&queue->done, memory_order_relaxed), done = first;
    uint64_t posted = port_posted(queue), turn = TURN_BYTES;
    while (done != posted && serve_request(queue, &queue->requests[done % REQUESTS], &turn))
        atomic_store_explicit(&queue->done, ++done, memory_order_release);
    if (done != first)
        wake_up_doorbell(proxy->own);
    return first != posted;
}

static bool queue_has_work(const port_queue *queue)
{
    return port_posted(queue) != atomic_load_explicit(&queue->done, memory_order_relaxed);
}

static void take_arrivals(port_proxy *proxy)
{
    if (!atomic_load_explicit(&proxy->inbox, memory_order_relaxed))
        return;
    port_queue *arrived = atomic_exchange_explicit(&proxy->inbox, NULL, memory_order_acquire);
    while (arrived) {
        port_queue *next = arrived->next;
        arrived->next = proxy->queues;
        proxy->queues = arrived;
        arrived = next;
    }
}

static bool serve_queues(port_proxy *proxy)
{
    bool any = false;
    take_arrivals(proxy);
    for (port_queue **at = &proxy->queues; *at;) {
        port_queue *queue = *at;
        bool closed = atomic_load_explicit(&queue->closed, memory_order_acquire);
        bool worked = serve_queue(proxy, queue);
        any |= worked;
        if (closed && !worked) {
            *at = queue->next;
            atomic_store_explicit(&queue->left, true, memory_order_release);
            wake_up_doorbell(proxy->own);
        } else {
            at = &queue->next;
        }
    }
    return any;
}

static bool has_reason_to_go_on(port_proxy *proxy)
{
    if (atomic_load_explicit(&proxy->inbox, memory_order_relaxed) ||
        atomic_load_explicit(&proxy->stop, memory_order_relaxed))
        return true;
    for (const port_queue *queue = proxy->queues; queue; queue = queue->next) {
        if (queue_has_work(queue) || atomic_load_explicit(&queue->closed, memory_order_relaxed))
            return true;
    }
    return false;
}

static void *channel_port_serve(void *argument)
{
    port_proxy *proxy = argument;
    for (uint32_t idle = 0; !atomic_load_explicit(&proxy->stop, memory_order_acquire);) {
        if (serve_queues(proxy)) {
            idle = 0;
        } else if (idle++ < proxy->spins) {
            spin_pause();
        } else {
            uint32_t seen = wake_up_announce(&proxy->door);
            if (!has_reason_to_go_on(proxy))
                wake_up_sleep_announced(&proxy->door, seen, NS_PER_S);
            wake_up_withdraw(&proxy->door);
        }
    }
    return NULL;
}

banyan_status port_proxy_create(wake_up *own, bool crowded, port_proxy **proxy)
{
    port_proxy *made = aligned_alloc(_Alignof(port_proxy), sizeof *made);
    if (!made)
        return error_no_memory(sizeof *made, "a proxy for port channels");
    memset(made, 0, sizeof *made);
    made->own = own;
    made->spins = wake_up_spins(crowded);
    *proxy = made;
    return BANYAN_OK;
}

void port_proxy_destroy(port_proxy *proxy)
{
    if (!proxy)
        return;
    if (proxy->running) {
        atomic_store_explicit(&proxy->stop, true, memory_order_release);
        wake_up_doorbell(&proxy->door);
        pthread_join(proxy->thread, NULL);
    }
    free(proxy);
}

banyan_status port_queue_create(port_proxy *proxy, port_queue **queue)
{
    port_queue *made = aligned_alloc(_Alignof(port_queue), sizeof *made);
    if (!made)
        return error_no_memory(sizeof *made, "a port channel's queue");
    memset(made, 0, sizeof *made);
    made->proxy = proxy;
    if (!proxy->running) {
        banyan_status status = thread_start(&proxy->thread, channel_port_serve, proxy, false);
        if (status != BANYAN_OK) {
            free(made);
            return status;
        }
        proxy->running = true;
    }
    made->next = atomic_load_explicit(&proxy->inbox, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(&proxy->inbox, &made->next, made,
                                                  memory_order_release, memory_order_relaxed))
        continue;
    wake_up_doorbell(&proxy->door);
    *queue = made;
    return BANYAN_OK;
}

void port_queue_destroy(port_queue *queue)
{
    if (!queue)
        return;
    wake_up *own = queue->proxy->own;
    atomic_store_explicit(&queue->closed, true, memory_order_release);
    wake_up_doorbell(&queue->proxy->door);
    while (!atomic_load_explicit(&queue->left, memory_order_acquire)) {
        uint32_t seen = wake_up_announce(own);
        if (!atomic_load_explicit(&queue->left, memory_order_acquire))
            wake_up_sleep_announced(own, seen, WAKE_UP_NAP_NS);
        wake_up_withdraw(own);
    }
    free(queue);
}

bool port_post(port_queue *queue, const port_request *request)
{
    uint64_t posted = atomic_load_explicit(&queue->posted, memory_order_relaxed);
    if (posted - queue->done_seen == REQUESTS) {
        queue->done_seen = port_done(queue);
        if (posted - queue->done_seen == REQUESTS)
            return false;
    }
    queue->requests[posted % REQUESTS] = *request;
    atomic_store_explicit(&queue->posted, posted + 1, memory_order_release);
    wake_up_doorbell(&queue->proxy->door);
    return true;
}

uint64_t port_posted(const port_queue *queue)
{
    return atomic_load_explicit(&((port_queue *)queue)->posted, memory_order_acquire);
}

uint64_t port_done(const port_queue *queue)
{
    return atomic_load_explicit(&((port_queue *)queue)->done, memory_order_acquire);
}
