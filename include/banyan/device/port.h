/* Banyan in kernels: what a kernel and the proxy of a port channel share.
 *
 * The proxy, a thread of the host, carries out what a kernel posts, in order: it drives a copy
 * engine or a NIC, so that no multiprocessor has to. C and CUDA C++.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef BANYAN_DEVICE_PORT_H
#define BANYAN_DEVICE_PORT_H

#include <stdint.h>

/* Kind of a request. */
typedef enum banyan_port_kind {
    BANYAN_PORT_PUT,   /* copy `bytes` from `source` to `destination` */
    BANYAN_PORT_SIGNAL /* add 1 to `signal`, once the puts before it are done */
} banyan_port_kind;

/* `number` is written last, with release: request n, counted from 0, is there once it is n + 1. */
typedef struct banyan_port_request {
    const void *source; /* put: first byte to read */
    void *destination;  /* put: first byte to write */
    uint64_t bytes;     /* put: length */
    uint64_t *signal;   /* signal: counter of the peer */
    uint64_t run;  /* of the plan that posted it, from 0 on; a kernel of one's own: what it likes */
    uint32_t kind; /* enum banyan_port_kind */
    uint32_t unused;     /* padding */
    uint64_t unused_too; /* padding */
    uint64_t number;
} banyan_port_request;

/* Lies in the GPU's memory. A kernel takes a number from `posted`, waits until fewer than `room`
 * requests before it are not yet done, and writes requests[number % room]. */
typedef struct banyan_port_queue {
    uint64_t posted;               /* 0 at first */
    uint64_t room;                 /* a power of two */
    banyan_port_request *requests; /* pinned host memory, zeroed */
    const uint64_t *done; /* requests that are done, wherever the GPU can read it; 0 at first */
} banyan_port_queue;

#endif
