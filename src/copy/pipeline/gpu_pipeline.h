/* The GPU pipeline: the table by which a module runs the pipeline on a device.
 *
 * The host plans (schedule/plan.h), down to the slot of its receiver that each batch travels to. A
 * GPU pipeline turns one rank's part into work for its device: packing into slots, sending slots,
 * unpacking them, each in a stream of its own, so that the three overlap. Ranks hand slots over by
 * signals in memory of their devices, as on the host: the receiver grants an empty slot, the sender
 * signals its arrival. A run is queued in the caller's stream and does not need the host. */
#ifndef COPY_PIPELINE_GPU_PIPELINE_H
#define COPY_PIPELINE_GPU_PIPELINE_H

#include <banyan/pipeline.h>

#include "copy/direct/moves.h"
#include "core/device_report.h"

typedef struct gpu_pipeline_batch {
    int peer;                  /* -1: nothing in this direction */
    int slot;                  /* one of the receiver's two */
    uint64_t bytes;            /* used bytes from the start of the slot */
    const direct_moves *moves; /* whole moves between tensors and a slot of this rank */
} gpu_pipeline_batch;

/* The n-th batch that this rank sends is packed into its send slot n % 2, and the n-th that it
 * receives arrives in its receive slot n % 2. */
typedef struct gpu_pipeline_step {
    uint64_t round; /* ascending; a batch has one round number at both ends */
    gpu_pipeline_batch send, recv;
} gpu_pipeline_step;

typedef struct gpu_pipeline_slots {
    char *send[BANYAN_PIPELINE_SLOTS], *recv[BANYAN_PIPELINE_SLOTS];
    size_t bytes; /* of each slot */
} gpu_pipeline_slots;

typedef struct copy_gpu_pipeline_ops {
    size_t size;      /* of this struct */
    const char *name; /* "cuda" */

    /* Allocate slots of `slot_bytes` (0: the default; equal on every rank) and open `transport`
     * between them (NULL: the default). Collective; the caller agrees on the status. Afterwards a
     * thread of the GPU pipeline checks the world (banyan_world_check) and ends its work on an
     * error. `sharers` ranks of the world, this one included, use the device. */
    banyan_status (*open)(banyan_world *world, int device, int sharers, const char *transport,
                          size_t slot_bytes, void **gpu_pipeline, gpu_pipeline_slots *slots);
    /* Local. Waits for runs under way, except a graph's. */
    void (*close)(void *gpu_pipeline);

    /* `local` lists the moves within this rank. The arguments need not live after the call. Local.
     */
    banyan_status (*prepare)(void *gpu_pipeline, const gpu_pipeline_step *steps, size_t count,
                             const direct_moves *local, void **work);
    /* Waits for runs under way, except a graph's. */
    void (*release)(void *work);

    /* Queue a run in the caller's stream. Runs of one GPU pipeline are ordered by their streams. */
    banyan_status (*run)(void *work, void *stream);
    /* Report how the finished runs went. The report's own word is 0 for a peer that is late to
     * grant a slot, and 1 for one late to send a batch. Does not wait. After any report but FINE,
     * runs move nothing to tensors. */
    void (*check)(void *gpu_pipeline, device_report *report);
} copy_gpu_pipeline_ops;

#endif
