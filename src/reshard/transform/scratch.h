/* The memory behind banyan_transform_scratch_take: what the parts of tasks in flight lie in. */
#ifndef RESHARD_TRANSFORM_SCRATCH_H
#define RESHARD_TRANSFORM_SCRATCH_H

#include <banyan/reshard.h>

#include "core/containers/array.h"
#include "reshard/run/memory.h"

/* Zeroed is empty. */
struct banyan_transform_scratch {
    run_memory *arena; /* memory comes from here when there is one, and stays with it */
    ARRAY(void *) blocks;
    uint64_t bytes; /* taken since the last release */
    /* While a run is prepared: what the transform keeps of its own, and how much that may be. */
    uint64_t kept_bytes, max_kept_bytes;
};

/* Give back everything that was taken. The scratch can be used again. */
void transform_scratch_release(banyan_transform_scratch *scratch);

#endif
