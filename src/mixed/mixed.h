/* The parts of a context of mixed collectives. */
#ifndef MIXED_MIXED_H
#define MIXED_MIXED_H

#include <banyan/collective.h>
#include <banyan/memory.h>
#include <banyan/mixed.h>

#include "core/containers.h"
#include "core/error.h"
#include "memory/device.h"
#include "mixed/engine.h"
#include "world/control.h"

/* The fastest mode of an operation for a measured size. Sizes ascend. */
typedef struct mixed_choice {
    uint64_t bytes;
    banyan_mixed_mode mode;
} mixed_choice;
typedef ARRAY(mixed_choice) mixed_choices;

struct banyan_mixed {
    banyan_world *world; /* the caller's; NULL: suspended, and the world has ended */
    control_timeout timeout;
    banyan_mixed_options options; /* `autotune` is NULL: only the open call reads it */
    mixed_engine_setup setup;     /* with the grid, and the context's own worlds */
    int rank, ranks;
    bool has_comms[MIXED_GROUPS]; /* communicators can serve each group of the kind */

    const mixed_engine_ops *ops;
    void *engine;
    const memory_device_ops *device_memory; /* NULL: the host */
    banyan_memory *memory;                  /* the memory that `room` asked for */
    bool has_memory, has_nvshmem, is_suspended;
    bool checks_calls; /* BANYAN_CHECK_CALLS */

    /* Communicators, and NCCL's, by group; opened at their first use. */
    banyan_comm *comms[MIXED_GROUPS];
    bool has_nccl;        /* all ranks have the library, and it has not failed to start */
    char nccl_lacks[600]; /* the reason if not */
    bool nccl_is_open[MIXED_GROUPS];
    banyan_mixed_mode latest; /* the latest call's; AUTO: none */
    bool
        graphs_hold_comms; /* of communicators that ended with their world and cannot be replaced */
    /* On the context's device, for modes that use collectives. The last one is in use; graphs may
     * hold the others. */
    ARRAY(pages) staging;

    ARRAY(banyan_mixed_timing) timings; /* sorted by operation, size and mode */
    mixed_choices choices[BANYAN_MIXED_OPS];
    error_kept failed; /* the first run that failed, until a resume */
};

/* INVALID for options out of range. Local. */
banyan_status mixed_options_check(const banyan_mixed_options *options, int rank);

/* MISMATCH names the first option in which a rank differs from rank 0, and both values. Ranks may
 * have different device numbers. Collective. */
banyan_status mixed_options_agree(banyan_world *world, const banyan_mixed_options *options);

/* Find out whether calls are compared (BANYAN_CHECK_CALLS), from rank 0's environment.
 * Collective. */
banyan_status mixed_check_calls_begin(banyan_mixed *mixed);

/* Check the arguments of a run and make a call of them. Local. */
banyan_status mixed_check_call(banyan_mixed *mixed, banyan_mixed_op op, const DLTensor *input,
                               const DLTensor *output, banyan_mixed_mode mode, mixed_call *call);

/* Handle a call that failed with `status`, in which the world or one of the context's own may have
 * ended: all of these end, and no later run begins. Returns the status to report. */
banyan_status mixed_stop_groups(banyan_mixed *mixed, banyan_status status);

/* INVALID while the context is suspended. */
banyan_status mixed_check_awake(const banyan_mixed *mixed);

/* Forget that the context is suspended, before it is freed. Local. */
void suspension_forget(banyan_mixed *mixed);

/* True for the statuses of a failed wait: TIMEOUT, PEER_LOST, ABORTED. */
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
