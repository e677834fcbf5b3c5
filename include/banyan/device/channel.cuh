/* Banyan in kernels: channels to a peer.
 *
 * A memory channel consists of a peer's memory, mapped here, and two counters. The peer adds to
 * the counter on this side, and this side waits for it; this side adds to the counter at the peer.
 * Counters only grow, so nothing is ever reset. A thread block puts and synchronizes, then one
 * thread signals:
 *
 *     banyan_device_put(&channel, 0, data, bytes, threadIdx.x, blockDim.x);
 *     __syncthreads();
 *     if (threadIdx.x == 0) {
 *         banyan_device_signal(&channel);
 *         banyan_device_wait_signal(&channel, &limits);
 *     }
 *     __syncthreads(); // the peer's data is visible here
 *
 * Channels are values: each thread that waits on one has its own copy, with its own `consumed`.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef BANYAN_DEVICE_CHANNEL_CUH
#define BANYAN_DEVICE_CHANNEL_CUH

#include <banyan/device/move.cuh>
#include <banyan/device/packet.cuh>
#include <banyan/device/port.h>

typedef struct banyan_device_channel {
    char *remote;             /* the peer's memory */
    uint64_t *outgoing;       /* the peer's counter: signals from this side */
    const uint64_t *incoming; /* this side's counter: signals from the peer */
    uint64_t consumed; /* signals that this side has waited for; begins at 0, like the counters */
} banyan_device_channel;

/* Write to, or read from, the peer's memory at `offset` bytes. The calling thread is number
 * `thread` of `threads`. */
BANYAN_DEVICE void banyan_device_put(const banyan_device_channel *channel, uint64_t offset,
                                     const void *from, uint64_t bytes, uint32_t thread,
                                     uint32_t threads)
{
    banyan_device_copy(channel->remote + offset, from, bytes, thread, threads);
}

BANYAN_DEVICE void banyan_device_get(const banyan_device_channel *channel, void *to,
                                     uint64_t offset, uint64_t bytes, uint32_t thread,
                                     uint32_t threads)
{
    banyan_device_copy(to, channel->remote + offset, bytes, thread, threads);
}

/* Called by one thread: signal the peer, and publish everything that this thread has written or
 * acquired. That includes writes of other threads of its block before a __syncthreads. */
BANYAN_DEVICE void banyan_device_signal(const banyan_device_channel *channel)
{
    banyan_device_add_release(channel->outgoing, 1);
}

/* Signal the peer that something was read, or has happened, without publishing any writes. Faster
 * than banyan_device_signal. */
BANYAN_DEVICE void banyan_device_signal_relaxed(const banyan_device_channel *channel)
{
    banyan_device_add_relaxed(channel->outgoing, 1);
}

/* Called by one thread: wait for the peer's next signal. The data it published is then visible to
 * this thread, and to the other threads of the block after a __syncthreads. False: the wait gave
 * up. */
BANYAN_DEVICE bool banyan_device_wait_signal(banyan_device_channel *channel,
                                             const banyan_device_limits *limits)
{
    banyan_device_wait wait = {};
    while (banyan_device_load_acquire(channel->incoming) <= channel->consumed) {
        if (!banyan_device_wait_on(limits, &wait))
            return false;
    }
    channel->consumed++;
    return true;
}

/* Like banyan_device_wait_signal, for a relaxed signal. */
BANYAN_DEVICE bool banyan_device_wait_signal_relaxed(banyan_device_channel *channel,
                                                     const banyan_device_limits *limits)
{
    banyan_device_wait wait = {};
    while (banyan_device_load_relaxed(channel->incoming) <= channel->consumed) {
        if (!banyan_device_wait_on(limits, &wait))
            return false;
    }
    channel->consumed++;
    return true;
}

/* Write request `number`, for which the queue has space. Everything that this thread has written
 * or acquired is visible before the request is executed. */
BANYAN_DEVICE void banyan_device_post_at(banyan_port_queue *queue, uint64_t number,
                                         const banyan_port_request *request)
{
    banyan_port_request *at = &queue->requests[number & (queue->capacity - 1)];
    at->source = request->source;
    at->destination = request->destination;
    at->bytes = request->bytes;
    at->signal = request->signal;
    at->run = request->run;
    at->kind = request->kind;
    banyan_device_store_release(&at->number, number + 1);
}

/* Called by one thread: post a request to the proxy; the function sets its `number`. Waits for
 * space in the queue. False: the wait gave up. */
BANYAN_DEVICE bool banyan_device_post(banyan_port_queue *queue, const banyan_port_request *request,
                                      const banyan_device_limits *limits)
{
    uint64_t number = banyan_device_take(&queue->posted, 1);
    banyan_device_wait wait = {};
    while (number >= banyan_device_load_acquire(queue->done) + queue->capacity) {
        if (!banyan_device_wait_on(limits, &wait))
            return false;
    }
    banyan_device_post_at(queue, number, request);
    return true;
}

/* Post a put: copy `bytes` bytes from `from` to `to`. False: the wait gave up. */
BANYAN_DEVICE bool banyan_device_post_put(banyan_port_queue *queue, void *to, const void *from,
                                          uint64_t bytes, const banyan_device_limits *limits)
{
    banyan_port_request request = {};
    request.kind = BANYAN_PORT_PUT;
    request.source = from;
    request.destination = to;
    request.bytes = bytes;
    return banyan_device_post(queue, &request, limits);
}

/* Post a signal: add 1 to the peer's counter after all earlier puts are done. False: the wait gave
 * up. */
BANYAN_DEVICE bool banyan_device_post_signal(banyan_port_queue *queue, uint64_t *signal,
                                             const banyan_device_limits *limits)
{
    banyan_port_request request = {};
    request.kind = BANYAN_PORT_SIGNAL;
    request.signal = signal;
    return banyan_device_post(queue, &request, limits);
}

/* Called by one thread: wait until all earlier requests are done: sources may be overwritten, and
 * destinations hold the data. False: the wait gave up. */
BANYAN_DEVICE bool banyan_device_flush(banyan_port_queue *queue, const banyan_device_limits *limits)
{
    uint64_t posted = banyan_device_load_relaxed(&queue->posted);
    banyan_device_wait wait = {};
    while (banyan_device_load_acquire(queue->done) < posted) {
        if (!banyan_device_wait_on(limits, &wait))
            return false;
    }
    return true;
}

#endif
