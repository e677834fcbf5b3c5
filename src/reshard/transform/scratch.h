/* The memory behind banyan_transform_scratch_take, which holds the parts of tasks in flight. */
#ifndef RESHARD_TRANSFORM_SCRATCH_H
#define RESHARD_TRANSFORM_SCRATCH_H

#include <banyan/reshard.h>

#include "core/containers/array.h"
#include "reshard/run/memory.h"

/* Zeroed is empty. */
struct banyan_transform_scratch {
    run_memory *arena; /* source of memory, if not NULL; the memory stays with it */
    ARRAY(void *) blocks;
    uint64_t bytes; /* taken since the last release */
    /* While a run is prepared: bytes that the transform itself keeps, and their limit. */
    uint64_t kept_bytes, max_kept_bytes;
};

/* Free everything that was taken. The scratch can be used again. */
void transform_scratch_release(banyan_transform_scratch *scratch);

#endif
