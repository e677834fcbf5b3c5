/* Kernels between nodes that put by NVSHMEM's device library. */
#ifndef CUDA_MIXED_NODES_PUTS_H
#define CUDA_MIXED_NODES_PUTS_H

#include <banyan/core.h>

struct cuda_mixed;

/* The device code, linked with NVSHMEM's; NULL: Banyan was built without. */
extern const void *const nodes_puts_image;
/* Of NVSHMEM's device library. */
extern const int nodes_puts_version[3];

/* Have them among the engine's kernels, with NVSHMEM's state of this process, ready to run:
 * UNSUPPORTED says why they are not. NVSHMEM is there, and the device's context is entered. */
banyan_status nodes_puts_load(struct cuda_mixed *engine);

#endif
