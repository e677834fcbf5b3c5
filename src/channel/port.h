/* Port channels: a queue to a proxy thread that copies bytes and signals the peer, in order.
 *
 * On a GPU machine the proxy is a host thread that drives a NIC or a copy engine. Here it is a
 * thread that copies into the peer's mapped memory. Posted requests progress without the poster. */
#ifndef CHANNEL_PORT_H
#define CHANNEL_PORT_H

#include <banyan/core.h>

#include "channel/counter.h"

typedef struct port_proxy port_proxy; /* one per rank */
typedef struct port_queue port_queue; /* one per port channel of the rank */

typedef enum port_kind {
    PORT_PUT,         /* copy `bytes` from `source` to `destination` */
    PORT_PUT_PACKETS, /* copy as packets with `flag` */
    /* Copy packets to packets, both with `flag`; `bytes` of data, which have arrived. */
    PORT_FORWARD_PACKETS,
    PORT_SIGNAL /* add 1 to `signal` and ring the doorbell of `peer` */
} port_kind;

typedef struct port_request {
    port_kind kind;
    void *destination;
    const void *source;
    uint64_t bytes;
    uint32_t flag;
    counter *signal;
    wake_up *peer;                 /* the rank that waits for the signal or the packets */
    uint64_t memory, memory_bytes; /* remote_port.h: the id and length of the peer's memory */
} port_request;

/* Create a proxy. Local. The thread starts with the first queue, and sleeps when idle, after fewer
 * spins when the ranks' threads are `crowded` on their processors. It rings `own`
 * (memory/staging/wake_up.h) when requests are done, for threads that wait for completion or for
 * space. */
banyan_status port_proxy_create(wake_up *own, bool crowded, port_proxy **proxy);
void port_proxy_destroy(port_proxy *proxy); /* after its queues; NULL is ignored */

/* Create a queue. Queues progress side by side: a long put in one does not delay the others. */
banyan_status port_queue_create(port_proxy *proxy, port_queue **queue);
/* Finish the posted requests, then destroy the queue. NULL is ignored. */
void port_queue_destroy(port_queue *queue);

/* Post a request. Any thread, one at a time. False: the queue is full; try again after the wake-up
 * has rung. */
bool port_post(port_queue *queue, const port_request *request);
/* Return the number of requests posted, or done, since the queue was created. The source of a
 * finished request may be reused. A thread that learns of it through port_done, or through a signal
 * posted after it, sees the data at the destination. */
uint64_t port_posted(const port_queue *queue);
uint64_t port_done(const port_queue *queue);

#endif
