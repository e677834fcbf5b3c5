/* Puts between nodes by NVSHMEM's calls of the host: kernels post them, a thread makes them. */
#ifndef CUDA_MIXED_NODES_PROXY_H
#define CUDA_MIXED_NODES_PROXY_H

#include <banyan/device/port.h>

#include "cuda/pipeline/nvshmem.h"

typedef struct nodes_proxy nodes_proxy;

/* Requests of a queue, one a rank of the world: `bytes` from `source` to `destination`, an address
 * of this rank's that stands for the peer's, and then its word `signal` becomes `run`. What `part`
 * points to stays. One put to each peer, of the word at `trial`, has been made when it returns, so
 * that nothing is loaded later. The device's context is entered. */
banyan_status nodes_proxy_start(int device, const nvshmem_part *part, int ranks, char *trial,
                                nodes_proxy **proxy);
/* By rank, in the device's memory. */
banyan_port_queue *nodes_proxy_queues(const nodes_proxy *proxy);
/* What was posted is queued when it returns. NULL is ignored. */
void nodes_proxy_end(nodes_proxy *proxy);

#endif
