/* A plan that is ready to run. */
#ifndef EXECUTE_LOAD_LOADED_H
#define EXECUTE_LOAD_LOADED_H

#include <pthread.h>

#include "core/containers/map.h"
#include "core/error.h"
#include "execute/executor.h"
#include "execute/host/waits.h"
#include "execute/load/reach.h"
#include "execute/specialize/specialize.h"
#include "world/control.h"

/* Where things lie in a rank's part of the plan's symmetric block. Counters are at its start: those
 * of memory channels, then those of port channels. */
typedef struct block_layout {
    uint64_t scratch, scratch_bytes;
    uint64_t scratch_half; /* from one half of it to the other, when it is double */
    uint64_t staging[2];   /* of the input and output; in place one of them stands for both */
    uint64_t bytes;
} block_layout;

/* A semaphore or barrier of this rank's thread blocks. */
typedef struct rendezvous {
    _Alignas(64) _Atomic uint64_t value;
} rendezvous;

/* Where the buffers of runs with these arguments lie; kept from one run to the next. */
typedef struct placement {
    const plan_cut *cut; /* NULL: of none yet */
    const void *input;
    void *output;
    char **bases; /* by step_base */
    struct {
        char *to; /* NULL: nothing is copied */
        const char *from;
        uint64_t bytes;
    } copy_in;
    struct {
        char *to; /* NULL: nothing is copied; the cut has the spans */
        const char *from;
    } copy_out;
    char *group_bases[ENGINE_GROUPS_MAX * PLAN_BUFFERS]; /* NULL: none */
    uint32_t multicast;                                  /* which there are, a bit each */
} placement;

/* The ranks of switch channels, and the multicast addresses of what they have. */
typedef struct plan_multicast {
    uint32_t members; /* a bit a rank */
    struct {
        char *address; /* NULL: none */
        size_t bytes;
    } of[PLAN_BUFFERS]; /* the memories of input and output, the block */
} plan_multicast;

/* The object of the device's wait, as the engine's thread reports it. */
typedef struct device_wait {
    pthread_mutex_t lock; /* of all here, and of changes to the list of the plan's cuts */
    control_wait wait;
    engine_report told; /* that `peer` and `text` describe */
    int peer;
    char text[WAIT_TEXT_BYTES];
} device_wait;

struct banyan_loaded_plan {
    banyan_executor *executor;
    banyan_plan *plan; /* a copy of its own */
    uint64_t max_message_bytes;
    const banyan_memory *memories[2]; /* given for input and output, or NULL */
    reach *reaches;                   /* by step_base */
    plan_geometry largest;            /* of the longest message */
    plan_buffer longer;               /* in place: the one that stands for both */
    bool copies_output;               /* runs may have to copy their output to where it belongs */
    banyan_memory *block;
    block_layout *layouts; /* one a rank */
    channel_end *ends[PLAN_CHANNEL_TYPES];
    rendezvous *semaphores, *barriers;
    map barrier_places; /* by the plan's number of them */
    uint32_t barrier_count;
    char *private_buffers[2]; /* NULL until they are needed */

    ARRAY(plan_cut *) cuts; /* the latest last */
    task *tasks;            /* one a thread block */
    uint32_t task_count;
    struct shuffle *shuffle; /* NULL: thread blocks run in their own order */
    placement placements[2]; /* of even and odd runs, which may use different halves of scratch */
    uint64_t runs;
    uint32_t flag; /* of the next run's packets */

    /* On a device. Runs of both kinds share placements[0]: the device chooses their half. */
    plan_multicast groups[ENGINE_GROUPS_MAX]; /* that this rank is in */
    uint32_t group_count;
    void *on_device;   /* as the engine knows it */
    bool captured;     /* graphs hold runs of it */
    error_kept failed; /* the first run that did */
    device_wait waits;
};

#endif
