/* The way between slots: symmetric memory of the ranks' devices, puts and signals in the order of a
 * stream. A table, with one implementation for devices that map each other's memory and one over
 * NVSHMEM. Places are offsets into the symmetric memory, the same on every rank. */
#ifndef CUDA_PIPELINE_WIRE_H
#define CUDA_PIPELINE_WIRE_H

#include <banyan/memory.h>

#include "cuda/driver.h"

typedef struct gpu_pipeline_transport_ops {
    const char *name;

    /* `bytes` of symmetric memory; `*local` is this rank's part. Its first `zero_bytes` are zero on
     * every rank when all ranks have returned. Collective; ranks agree on the status afterwards.
     * The device's context is not entered. */
    banyan_status (*open)(banyan_world *world, int device, size_t bytes, size_t zero_bytes,
                          void **wire, char **local);
    /* Local; nothing is under way from this rank. */
    void (*close)(void *wire);

    /* The device's context is entered; both are queued. Add one to the peer's word at `word`, after
     * everything before in the stream, of which `told` counts how often this rank has done so. */
    banyan_status (*tell)(void *wire, CUstream stream, int peer, size_t word, uint64_t *told);
    /* Move bytes; when the stream is past it they may change here. With `put_tells` it then adds
     * one to the peer's word, and otherwise leaves that to `tell`. */
    banyan_status (*put)(void *wire, CUstream stream, int peer, size_t to, size_t from,
                         size_t bytes, size_t word);
    bool put_tells;
} gpu_pipeline_transport_ops;

extern const gpu_pipeline_transport_ops gpu_pipeline_wire_peer;
extern const gpu_pipeline_transport_ops gpu_pipeline_wire_nvshmem;

#endif
