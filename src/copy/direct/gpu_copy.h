/* The GPU copy: the table by which a module moves strided boxes on a device for the direct backend.
 *
 * The host plans (direct/plan.h): which rank moves what, to and from addresses that are all mapped
 * in this process. The GPU copy turns one rank's part into work for its device. The work then runs
 * in the caller's stream without the host, and a graph can capture it. Partners synchronize through
 * counters in symmetric memory of the devices. Every function here is local. */
#ifndef COPY_DIRECT_GPU_COPY_H
#define COPY_DIRECT_GPU_COPY_H

#include <banyan/world.h>

#include "copy/direct/moves.h"
#include "core/device_report.h"

#define GPU_COPY_LANES_MAX 64

/* The moves of this rank to a partner, or (peer: itself) within the rank, and whether the partner
 * moves something here. Counters are 64-bit, a cache line each, zero at first; each side counts the
 * runs that the two have had with each other. `their…` lie at the partner, `my…` here. NULL for
 * moves within the rank. */
typedef struct gpu_copy_lane {
    int peer;
    bool receives;
    const direct_moves *moves;              /* whole moves, without chunks */
    uint64_t *my_entered, *their_entered;   /* the rank has entered this run in its stream */
    uint64_t *my_finished, *their_finished; /* all its moves for this partner are complete */
} gpu_copy_lane;

typedef struct copy_gpu_copy_ops {
    size_t size;      /* of this struct */
    const char *name; /* "cuda" */

    /* `sharers` ranks of the world, this one included, use the device, and their work must fit on
     * it at once. A thread of the GPU copy checks the world (banyan_world_check) and ends its work
     * on an error. */
    banyan_status (*open)(banyan_world *world, int device, int sharers, uint64_t timeout_ns,
                          void **gpu_copy);
    void (*close)(void *gpu_copy);

    /* Memory behind the lanes must live until release; a peer has one lane. */
    banyan_status (*prepare)(void *gpu_copy, const gpu_copy_lane *lanes, size_t count, void **work);
    /* Waits for runs under way, except a graph's. */
    void (*release)(void *work);

    /* Queue a run in the caller's stream. Runs of one GPU copy are ordered by their streams. */
    banyan_status (*run)(void *work, void *stream);
    /* Report how the finished runs went. The report's own word is 0 for a peer that is late to
     * enter a run, and 1 for one late to finish its part. Does not wait. After any report but FINE,
     * runs do nothing. */
    void (*check)(void *gpu_copy, device_report *report);
} copy_gpu_copy_ops;

#endif
