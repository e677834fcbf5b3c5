/* Mixed collectives on a CUDA device: declarations that the engine's files share. */
#ifndef CUDA_MIXED_ENGINE_H
#define CUDA_MIXED_ENGINE_H

#include "cuda/copy/nccl/session.h"
#include "cuda/driver.h"
#include "cuda/mixed/kernel.h"
#include "cuda/mixed/nodes/nodes.h"
#include "cuda/runtime/launch.h"
#include "cuda/runtime/watch.h"
#include "mixed/engine.h"

extern const mixed_engine_ops cuda_mixed_ops;

typedef struct cuda_mixed {
    const mixed_engine_setup *setup;
    int device;
    int ranks, rank; /* of the node */
    uint32_t elem_bytes;
    uint32_t nothing; /* as in mixed_base */
    uint64_t most_bytes;
    uint64_t buffer_bytes;

    uint32_t processors, most_blocks, least_threads, most_threads;
    CUfunction kernels[MIXED_KERNELS];
    uint32_t room[MIXED_KERNELS]; /* threads of it that a multiprocessor runs at once */
    bool counted;                 /* counted among the device's engines */

    CUstream stream; /* for work outside of the callers' streams */
    CUdeviceptr block;
    mixed_state *states;
    uint32_t *broken;
    report_words *reports;
    watch *watching;
    bool has_parts;
    char *parts[MIXED_RANKS_MAX];

    nccl_session nccl[MIXED_GROUPS]; /* world is NULL: not open */
    cuda_nodes nodes;
} cuda_mixed;

/* launch.c */
/* Set the function of a kernel, which is on the device. The device is entered. */
banyan_status mixed_take_kernel(cuda_mixed *engine, mixed_kernel kernel, CUfunction function);
/* Return the number of a kernel's thread blocks that run at once, beside those of other engines on
 * the device. */
uint32_t mixed_blocks_at_once(const cuda_mixed *engine, mixed_kernel kernel, uint32_t threads);
launch_shape mixed_shape_of(const cuda_mixed *engine, mixed_kernel kernel, uint32_t blocks,
                            uint32_t threads);

/* run.c. Return the size of a receive buffer for launches of `most_bytes`. */
uint64_t mixed_buffer_bytes(const cuda_mixed *engine);
/* Queue a call of at least 1 element. The device is entered. */
banyan_status mixed_run_on_node(const cuda_mixed *engine, const mixed_call *call, CUstream stream);
banyan_status mixed_clear(cuda_mixed *engine, char *at, uint64_t bytes);

/* nccl.c */
banyan_status mixed_nccl_find(void *engine, mixed_nccl *found);
banyan_status mixed_nccl_open(void *engine, mixed_group group);
banyan_status mixed_nccl_run(void *engine, mixed_group group, banyan_mixed_op op, const void *input,
                             void *output, uint64_t elems, void *stream);
banyan_status mixed_nccl_check(void *engine, mixed_group group);
/* Communicators that are open may be opened again. */
void mixed_nccl_close(cuda_mixed *engine);

#endif
