/* Kernels between nodes that put by NVSHMEM's device library. */
#ifndef CUDA_MIXED_NODES_PUTS_H
#define CUDA_MIXED_NODES_PUTS_H

#include <banyan/core.h>

struct cuda_mixed;

/* The device code, linked with NVSHMEM's; NULL: this build has none. */
extern const void *const nodes_puts_image;
/* Version of NVSHMEM's device library. */
extern const int nodes_puts_version[3];

/* Add them to the engine's kernels, with this process's NVSHMEM state, ready to run. UNSUPPORTED,
 * with the reason. NVSHMEM is initialized, and the device's context is entered. */
banyan_status nodes_puts_load(struct cuda_mixed *engine);

#endif
