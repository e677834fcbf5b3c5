/* Moving strided boxes on a device: the table that a module brings for the direct backend.
 *
 * The host plans (direct/plan.h): which rank moves what, to and from addresses that are all mapped
 * in this process. A GPU copy turns one rank's part into work for its device, which then runs in
 * the caller's stream with nothing asked of the host, and can be captured in a graph. Partners meet
 * through counters in symmetric memory of the devices. Everything here is local. */
#ifndef COPY_DIRECT_GPU_COPY_H
#define COPY_DIRECT_GPU_COPY_H

#include <banyan/world.h>

#include "copy/direct/moves.h"
#include "copy/service/device_report.h"

#define MOVER_LANES_MAX 64

/* What this rank moves to a partner, or (peer: itself) at home, and whether the partner moves
 * something here. Counters are 64-bit, a cache line each, zero at first; each side counts the runs
 * that the two have had with each other. `their…` lie at the partner, `my…` here. NULL at home. */
typedef struct gpu_copy_lane {
    int peer;
    bool receives;
    const direct_moves *moves;              /* whole ones, without chunks */
    uint64_t *my_entered, *their_entered;   /* the rank has come to this run in its stream */
    uint64_t *my_finished, *their_finished; /* all it had to move for this partner is there */
} gpu_copy_lane;

typedef struct copy_gpu_copy_ops {
    size_t size;      /* of this struct */
    const char *name; /* "cuda" */

    /* `sharers` ranks of the world, this one included, use the device, and their work must fit on
     * it at once. The GPU copy asks the world, from a thread of its own, whether all is well
     * (banyan_world_check), and ends its work when not. */
    banyan_status (*open)(banyan_world *world, int device, int sharers, uint64_t timeout_ns,
                          void **gpu_copy);
    void (*close)(void *gpu_copy);

    /* What lanes point to must stay until release; a peer has one lane. */
    banyan_status (*prepare)(void *gpu_copy, const gpu_copy_lane *lanes, size_t count, void **work);
    /* Waits for runs under way that are not a graph's. */
    void (*release)(void *work);

    /* Queue a run in the caller's stream. Runs of one GPU copy are ordered by their streams. */
    banyan_status (*run)(void *work, void *stream);
    /* How the GPU copy's runs went that have ended so far: peers were waited for to enter a run, or
     * to finish their part of it. Does not wait. After anything but FINE runs do nothing. */
    void (*check)(void *gpu_copy, device_report *report);
} copy_gpu_copy_ops;

#endif
