/* Puts between nodes by NVSHMEM's host calls: kernels post them, a thread makes them. */
#ifndef CUDA_MIXED_NODES_PROXY_H
#define CUDA_MIXED_NODES_PROXY_H

#include <banyan/device/port.h>

#include "cuda/pipeline/nvshmem.h"

typedef struct nodes_proxy nodes_proxy;

/* Start the proxy, with one queue for each rank of the world. A request puts `bytes` from `source`
 * to `destination`, a local address that stands for the peer's; then the peer's word `signal`
 * becomes `run`. The object of `part` must remain. Before returning, it makes one put to each
 * peer, of the word at `trial`, so that nothing is loaded later. The device's context is
 * entered. */
banyan_status nodes_proxy_start(int device, const nvshmem_part *part, int ranks, char *trial,
                                nodes_proxy **proxy);
/* Return the queues by rank, in device memory. */
banyan_port_queue *nodes_proxy_queues(const nodes_proxy *proxy);
/* End the proxy; posted requests are queued on return. Ignores NULL. */
void nodes_proxy_end(nodes_proxy *proxy);

#endif
