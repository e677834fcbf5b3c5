/* What a context of mixed collectives is made of. */
#ifndef MIXED_MIXED_H
#define MIXED_MIXED_H

#include <banyan/collective.h>
#include <banyan/memory.h>
#include <banyan/mixed.h>

#include "core/containers/array.h"
#include "core/error.h"
#include "memory/device.h"
#include "mixed/engine.h"
#include "world/control.h"

/* The fastest mode of a size that was measured, of one operation: ascending sizes. */
typedef struct mixed_choice {
    uint64_t bytes;
    banyan_mixed_mode mode;
} mixed_choice;
typedef ARRAY(mixed_choice) mixed_choices;

struct banyan_mixed {
    banyan_world *world; /* the caller's; NULL: suspended, and it has ended */
    control_timeout timeout;
    banyan_mixed_options options; /* `autotune` is NULL: who opens reads it */
    mixed_engine_setup setup;     /* with the grid, and worlds of its own */
    int rank, ranks;
    /* Of each kind of group all are on one machine, so that communicators serve it. */
    bool is_near[MIXED_GROUPS];

    const mixed_engine_ops *ops;
    void *engine;
    const memory_device_ops *device_memory; /* NULL: the host */
    banyan_memory *memory;                  /* that `room` asked for */
    bool has_memory, has_nvshmem, is_suspended;
    bool checks_calls; /* BANYAN_CHECK_CALLS */

    /* Communicators and NCCL's, by group; opened when first needed. */
    banyan_comm *comms[MIXED_GROUPS];
    bool has_nccl;        /* its library is there, on all ranks, and has not failed to start */
    char nccl_lacks[600]; /* else why not */
    bool nccl_is_open[MIXED_GROUPS];
    banyan_mixed_mode latest; /* of the calls; AUTO: there was none */
    bool graphs_hold_comms;   /* that ended with their world: there is no other for them */
    /* On the context's device, of the modes that go through collectives. The last is used; graphs
     * may hold the others. */
    ARRAY(pages) staging;

    ARRAY(banyan_mixed_timing) timings; /* by operation, size and mode */
    mixed_choices choices[BANYAN_MIXED_OPS];
    error_kept failed; /* the first run that did, until a resume */
};

/* Tell the engine where its memory is, all of which is zero. Collective. */
banyan_status mixed_use_memory(banyan_mixed *mixed);

/* Are the arguments of a run right? Makes a call of them; local. */
banyan_status mixed_check_call(banyan_mixed *mixed, banyan_mixed_op op, const DLTensor *input,
                               const DLTensor *output, banyan_mixed_mode mode, mixed_call *call);

/* A call has failed with `status`, in which the world may have ended, or one of the context's own:
 * all of these end with it, and no later run begins. Returns what to tell. */
banyan_status mixed_stop_groups(banyan_mixed *mixed, banyan_status status);

/* INVALID while they are suspended. */
banyan_status mixed_check_awake(const banyan_mixed *mixed);

/* Is it what waits end with? */
static inline bool mixed_is_of_waits(banyan_status status)
{
    return status == BANYAN_ERR_TIMEOUT || status == BANYAN_ERR_PEER_LOST ||
           status == BANYAN_ERR_ABORTED;
}

static inline bool mixed_is_host(const banyan_mixed *mixed)
{
    return !mixed->device_memory;
}

#endif
