/* The pipeline on a device: the table that a module brings for tensors in its memory.
 *
 * The host plans (schedule/plan.h), down to which slot of its receiver each batch travels to. A
 * GPU pipeline turns one rank's part into work for its device: packing into slots, sending slots,
 * unpacking them, each in a stream of its own, so that the three overlap. Ranks hand slots over by
 * signals in memory of their devices, as on the host: the receiver grants an empty slot, the sender
 * tells its arrival. A run is queued in the caller's stream and asks the host for nothing. */
#ifndef COPY_PIPELINE_GPU_PIPELINE_H
#define COPY_PIPELINE_GPU_PIPELINE_H

#include <banyan/pipeline.h>

#include "copy/direct/moves.h"
#include "copy/service/device_report.h"

typedef struct gpu_pipeline_batch {
    int peer;                  /* -1: nothing in this direction */
    int slot;                  /* of the receiver's two */
    uint64_t bytes;            /* of the slot, from its start, that are used */
    const direct_moves *moves; /* whole ones, between tensors and a slot of this rank's */
} gpu_pipeline_batch;

/* The n-th batch that this rank sends is packed into its send slot n % 2, and the n-th that it
 * receives comes to its receive slot n % 2. */
typedef struct gpu_pipeline_step {
    uint64_t round; /* ascending; a batch is of the same round at both ends */
    gpu_pipeline_batch send, recv;
} gpu_pipeline_step;

typedef struct gpu_pipeline_slots {
    char *send[BANYAN_PIPELINE_SLOTS], *recv[BANYAN_PIPELINE_SLOTS];
    size_t bytes; /* of each */
} gpu_pipeline_slots;

typedef struct copy_gpu_pipeline_ops {
    size_t size;      /* of this struct */
    const char *name; /* "cuda" */

    /* Slots of `slot_bytes` (0: the GPU pipeline's default; the same on every rank) and a way
     * between them, `transport` (NULL: the GPU pipeline's default). Collective; the caller agrees
     * on the status. Afterwards the GPU pipeline asks the world, from a thread of its own, whether
     * all is well (banyan_world_check), and ends its work when not. */
    banyan_status (*open)(banyan_world *world, int device, const char *transport, size_t slot_bytes,
                          void **gpu_pipeline, gpu_pipeline_slots *slots);
    /* Local. Waits for runs under way that are not a graph's. */
    void (*close)(void *gpu_pipeline);

    /* `local` are the moves within this rank. Nothing that is passed is needed afterwards. Local.
     */
    banyan_status (*prepare)(void *gpu_pipeline, const gpu_pipeline_step *steps, size_t count,
                             const direct_moves *local, void **work);
    /* Waits for runs under way that are not a graph's. */
    void (*release)(void *work);

    /* Queue a run in the caller's stream. Runs of one GPU pipeline are ordered by their streams. */
    banyan_status (*run)(void *work, void *stream);
    /* How the GPU pipeline's runs went that have ended so far: peers were waited for to grant a
     * slot, or to send a batch. Does not wait. After anything but FINE runs move nothing to
     * tensors. */
    void (*check)(void *gpu_pipeline, device_report *report);
} copy_gpu_pipeline_ops;

#endif
