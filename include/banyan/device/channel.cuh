/* Banyan in kernels: channels to a peer.
 *
 * A memory channel is a peer's memory, mapped here, and two counters: the peer adds to one that
 * lies here, and is waited for; this side adds to one that lies at the peer. Counters only grow, so
 * that nothing is ever reset. A thread block puts, meets, and then one thread signals:
 *
 *     banyan_device_put(&channel, 0, data, bytes, threadIdx.x, blockDim.x);
 *     __syncthreads();
 *     if (threadIdx.x == 0) {
 *         banyan_device_signal(&channel);
 *         banyan_device_wait_signal(&channel, &limits);
 *     }
 *     __syncthreads(); // what the peer has put is here
 *
 * Channels are values: each thread that waits on one has a copy of its own, `consumed` included.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef BANYAN_DEVICE_CHANNEL_CUH
#define BANYAN_DEVICE_CHANNEL_CUH

#include <banyan/device/move.cuh>
#include <banyan/device/packet.cuh>
#include <banyan/device/port.h>

/* ---- memory channels ---- */

typedef struct banyan_device_channel {
    char *remote;             /* the peer's memory */
    uint64_t *outgoing;       /* the peer's counter: signals of this side */
    const uint64_t *incoming; /* this side's: signals of the peer */
    uint64_t consumed;        /* of those, waited for so far: 0 while the counters are */
} banyan_device_channel;

/* Write to, or read from, the peer's memory, `offset` bytes in. Of `threads` threads, this is
 * number `thread`. */
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

/* One thread: tell the peer, with all that this thread has written or knows of; what other threads
 * of its block wrote before a __syncthreads is among that. */
BANYAN_DEVICE void banyan_device_signal(const banyan_device_channel *channel)
{
    banyan_device_add_release(channel->outgoing, 1);
}

/* Tell the peer that something was read, or has happened; nothing that was written goes with it.
 * Faster than the other. */
BANYAN_DEVICE void banyan_device_signal_relaxed(const banyan_device_channel *channel)
{
    banyan_device_add_relaxed(channel->outgoing, 1);
}

/* One thread: wait for the peer's next signal. What went with it is visible here, and to the other
 * threads of the block after a __syncthreads. False: the wait gave up. */
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

/* The same of a relaxed signal. */
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

/* ---- port channels ---- */

/* Write request `number`, for which there is room. What this thread has written or knows of is
 * there before it is carried out. */
BANYAN_DEVICE void banyan_device_post_at(banyan_port_queue *queue, uint64_t number,
                                         const banyan_port_request *request)
{
    banyan_port_request *at = &queue->requests[number & (queue->room - 1)];
    at->source = request->source;
    at->destination = request->destination;
    at->bytes = request->bytes;
    at->signal = request->signal;
    at->run = request->run;
    at->kind = request->kind;
    banyan_device_store_release(&at->number, number + 1);
}

/* One thread: hand the proxy a request, whose `number` is set here. Waits for room; false: the wait
 * gave up. */
BANYAN_DEVICE bool banyan_device_post(banyan_port_queue *queue, const banyan_port_request *request,
                                      const banyan_device_limits *limits)
{
    uint64_t number = banyan_device_take(&queue->posted, 1);
    banyan_device_wait wait = {};
    while (number >= banyan_device_load_acquire(queue->done) + queue->room) {
        if (!banyan_device_wait_on(limits, &wait))
            return false;
    }
    banyan_device_post_at(queue, number, request);
    return true;
}

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

/* The peer's counter grows by 1 once all puts before it are done. */
BANYAN_DEVICE bool banyan_device_post_signal(banyan_port_queue *queue, uint64_t *signal,
                                             const banyan_device_limits *limits)
{
    banyan_port_request request = {};
    request.kind = BANYAN_PORT_SIGNAL;
    request.signal = signal;
    return banyan_device_post(queue, &request, limits);
}

/* One thread: wait until all that was posted before is done: sources may be written again, and
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
