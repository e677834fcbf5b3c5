/* The transport between slots: symmetric memory of the ranks' devices, and puts and signals in the
 * order of a stream. A table with one implementation for devices that map each other's memory, and
 * one over NVSHMEM. Places are offsets into the symmetric memory, equal on every rank. */
#ifndef CUDA_PIPELINE_WIRE_H
#define CUDA_PIPELINE_WIRE_H

#include <banyan/memory.h>

#include "cuda/driver.h"

typedef struct gpu_pipeline_transport_ops {
    const char *name;

    /* Allocate `bytes` of symmetric memory; `*local` is this rank's part. Its first `zero_bytes`
     * are zero on every rank when all ranks have returned. Collective; ranks agree on the status
     * afterwards. The device's context is not entered. */
    banyan_status (*open)(banyan_world *world, int device, size_t bytes, size_t zero_bytes,
                          void **wire, char **local);
    /* Local; no operation of this rank is in progress. */
    void (*close)(void *wire);

    /* The device's context is entered; both functions queue their work. tell: add one to the
     * peer's word at `word`, after all earlier work in the stream. `told` counts how often this
     * rank has done so. */
    banyan_status (*tell)(void *wire, CUstream stream, int peer, size_t word, uint64_t *told);
    /* Move bytes; after it in the stream, the source may change. If `put_tells`, it then adds one
     * to the peer's word; otherwise the caller uses `tell`. */
    banyan_status (*put)(void *wire, CUstream stream, int peer, size_t to, size_t from,
                         size_t bytes, size_t word);
    bool put_tells;
} gpu_pipeline_transport_ops;

extern const gpu_pipeline_transport_ops gpu_pipeline_wire_peer;
extern const gpu_pipeline_transport_ops gpu_pipeline_wire_nvshmem;

#endif
