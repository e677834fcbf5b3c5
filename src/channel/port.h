/* Port channels: a queue to a proxy thread that moves bytes and tells the peer, in order.
 *
 * On a GPU machine the proxy is a thread of the host that drives a NIC or a copy engine; here it is
 * a thread that copies into the peer's mapped memory. What is posted goes on by itself. */
#ifndef CHANNEL_PORT_H
#define CHANNEL_PORT_H

#include <banyan/core.h>

#include "channel/counter.h"

typedef struct port_proxy port_proxy; /* one a rank */
typedef struct port_queue port_queue; /* one a port channel of the rank */

typedef enum port_kind {
    PORT_PUT,         /* copy `bytes` from `source` to `destination` */
    PORT_PUT_PACKETS, /* the same, as packets with `flag` */
    /* The same from packets to packets, both with `flag`; `bytes` of data, which have come. */
    PORT_FORWARD_PACKETS,
    PORT_SIGNAL /* add 1 to `signal` and knock on `peer` */
} port_kind;

typedef struct port_request {
    port_kind kind;
    void *destination;
    const void *source;
    uint64_t bytes;
    uint32_t flag;
    counter *signal;
    wake_up *peer; /* of the rank that waits for the signal, or the packets */
} port_request;

/* Local. The thread starts with the first queue, and sleeps when there is nothing to do; after
 * fewer spins when the ranks' threads are `crowded` on their processors. `own` is knocked on
 * (memory/staging/wake_up.h) when requests are done, for whoever waits for them or for room. */
banyan_status port_proxy_create(wake_up *own, bool crowded, port_proxy **proxy);
void port_proxy_destroy(port_proxy *proxy); /* after its queues; NULL is ignored */

/* Queues go on side by side: a long put in one does not keep the others waiting. */
banyan_status port_queue_create(port_proxy *proxy, port_queue **queue);
/* What was posted is done first. NULL is ignored. */
void port_queue_destroy(port_queue *queue);

/* Any thread, one at a time. False: the queue is full, come back when the wake-up has rung. */
bool port_post(port_queue *queue, const port_request *request);
/* Requests posted, and done, since the queue was made. All that is done has left its source, and
 * whoever learns of it through port_done, or through a signal posted behind it, finds it at its
 * destination. */
uint64_t port_posted(const port_queue *queue);
uint64_t port_done(const port_queue *queue);

#endif
