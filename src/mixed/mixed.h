/* What a context of mixed collectives is made of. */
#ifndef MIXED_MIXED_H
#define MIXED_MIXED_H

#include <banyan/collective.h>
#include <banyan/memory.h>
#include <banyan/mixed.h>

#include "core/array.h"
#include "mixed/engine.h"

struct banyan_mixed {
    banyan_world *world; /* the caller's */
    banyan_mixed_options options;
    mixed_engine_setup setup; /* with the grid */
    const mixed_engine_ops *ops;
    void *engine;
    banyan_memory *memory; /* that `room` asked for */
    bool has_memory, has_nvshmem, is_suspended;
    /* Communicators and NCCL's, by group; opened when first needed by a mode that is valid. */
    banyan_comm *comms[MIXED_GROUPS];
    bool has_nccl[MIXED_GROUPS];
    void *staging; /* of the modes that go through collectives; on the context's device */
    uint64_t staging_bytes;
    ARRAY(banyan_mixed_timing) timings; /* by operation, size and mode */
    banyan_status failed;               /* of a run, until it is told */
};

#endif
