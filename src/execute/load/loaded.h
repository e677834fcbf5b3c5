/* A plan that is ready to run. */
#ifndef EXECUTE_LOAD_LOADED_H
#define EXECUTE_LOAD_LOADED_H

#include <pthread.h>

#include "core/containers.h"
#include "core/error.h"
#include "execute/executor.h"
#include "execute/host/waits.h"
#include "execute/specialize/specialize.h"
#include "world/control.h"

/* The accesses to a buffer when a plan runs. */
typedef struct reach {
    bool used;    /* by any rank */
    bool read;    /* by any rank */
    bool written; /* by any rank */
    bool peers;   /* other ranks read or write it */
} reach;

/* Offsets in a rank's part of the plan's symmetric block. The counters come first: those of memory
 * channels, then those of port channels. */
typedef struct block_layout {
    uint64_t scratch, scratch_bytes;
    uint64_t scratch_half; /* offset between the halves of double scratch */
    uint64_t staging[2];   /* for input and output; in place one of them stands for both */
    uint64_t bytes;
} block_layout;

/* A semaphore or barrier of this rank's thread blocks. */
typedef struct block_counter {
    _Alignas(64) _Atomic uint64_t value;
} block_counter;

/* Symmetric memory of a rank of another node. */
typedef struct memory_extent {
    uint64_t id, bytes;
} memory_extent;

/* Buffer bindings of runs with these arguments; kept from one run to the next. */
typedef struct binding {
    const specialized_plan *specialized; /* NULL: not bound yet */
    const void *input;
    void *output;
    /* Indexed by step_base. A base at another node counts from REMOTE_PORT_START; on a device it is
     * a remote address (engine.h). */
    char **bases;
    memory_extent *remote; /* where it lies there; NULL: all ranks are on this node */
    struct {
        char *to; /* NULL: copy nothing */
        const char *from;
        uint64_t bytes;
    } copy_in;
    struct {
        char *to; /* NULL: copy nothing; else the specialized plan's spans */
        const char *from;
    } copy_out;
    char *group_bases[ENGINE_GROUPS_MAX * PLAN_BUFFERS]; /* NULL: none */
    uint32_t multicast;                                  /* existing addresses, one bit each */
} binding;

/* The ranks of switch channels, and the multicast addresses of their memory. */
typedef struct plan_multicast {
    uint32_t members; /* one bit for each rank */
    struct {
        char *address; /* NULL: none */
        size_t bytes;
    } of[PLAN_BUFFERS]; /* the memories of input and output, the block */
} plan_multicast;

/* The wait that the engine's thread reports from the device. */
typedef struct device_wait {
    pthread_mutex_t lock; /* guards this struct, and changes to the list of specialized plans */
    control_wait wait;
    device_report reported; /* described by `peer` and `text` */
    int peer;
    char text[WAIT_TEXT_BYTES];
} device_wait;

struct banyan_loaded_plan {
    banyan_executor *executor;
    banyan_plan *plan; /* a private copy */
    uint64_t max_message_bytes;
    const banyan_memory *memories[2]; /* given for input and output, or NULL */
    uint64_t *memory_bytes[2];        /* at each rank; NULL: all ranks are on this node */
    reach *reaches;                   /* indexed by step_base */
    plan_geometry largest;            /* geometry for the longest message */
    plan_buffer longer;               /* in place: the buffer that stands for both */
    bool copies_output;               /* runs may need to copy their output out of staging */
    bool redirects_output; /* staged: what other nodes put there may arrive in the caller's, and
                            * this rank writes there */
    banyan_memory *block;
    block_layout *layouts; /* one for each rank */
    channel_end *ends[PLAN_CHANNEL_TYPES];
    block_counter *semaphores, *barriers;
    hash_map barrier_places; /* from the plan's barrier number to its index */
    uint32_t barrier_count;
    char *private_buffers[2]; /* NULL until the first use */

    ARRAY(specialized_plan *) specialized; /* the latest last */
    task *tasks;                           /* one for each thread block */
    uint32_t task_count;
    struct shuffle *shuffle; /* NULL: thread blocks run in their own order */
    binding bindings[2];     /* for even and odd runs, which may use different halves of scratch */
    uint64_t runs;
    uint32_t flag; /* of the next run's packets */

    /* On a device. Even and odd runs share bindings[0], since the device chooses the half. */
    plan_multicast groups[ENGINE_GROUPS_MAX]; /* the groups of this rank */
    uint32_t group_count;
    void *on_device;   /* the engine's handle */
    bool captured;     /* graphs contain runs of it */
    error_kept failed; /* the first run that failed */
    device_wait waits;
};

/* Check that all ranks load the same plan with the same options. Collective. MISMATCH on all ranks,
 * with the first difference in the message. */
banyan_status load_agree(banyan_loaded_plan *loaded);

#endif
