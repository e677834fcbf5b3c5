/* Banyan in kernels: the structures that a kernel and the proxy of a port channel share.
 *
 * The proxy is a thread of the host that executes a kernel's requests in order. It drives a copy
 * engine or a NIC, so that the multiprocessors stay free. C and CUDA C++.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef BANYAN_DEVICE_PORT_H
#define BANYAN_DEVICE_PORT_H

#include <stdint.h>

/* Kind of a request. */
typedef enum banyan_port_kind {
    BANYAN_PORT_PUT,   /* copy `bytes` from `source` to `destination` */
    BANYAN_PORT_SIGNAL /* add 1 to `signal` after the earlier puts are done */
} banyan_port_kind;

/* A request. `number` is written last, with release: request n, counted from 0, is complete once
 * its `number` is n + 1. */
typedef struct banyan_port_request {
    const void *source; /* put: first byte to read */
    void *destination;  /* put: first byte to write */
    uint64_t bytes;     /* put: length */
    uint64_t *signal;   /* signal: the peer's counter */
    uint64_t run;       /* run of the posting plan, from 0 on; your own kernels may use any value */
    uint32_t kind;      /* enum banyan_port_kind */
    uint32_t unused;    /* padding */
    uint64_t unused_too; /* padding */
    uint64_t number;
} banyan_port_request;

/* A queue of requests, in the GPU's memory. A kernel takes a number from `posted`, waits until
 * fewer than `capacity` earlier requests are pending, and writes requests[number % capacity]. */
typedef struct banyan_port_queue {
    uint64_t posted;               /* initially 0 */
    uint64_t capacity;             /* a power of two */
    banyan_port_request *requests; /* pinned host memory, zeroed */
    const uint64_t *done; /* number of completed requests, readable by the GPU; initially 0 */
} banyan_port_queue;

#endif
