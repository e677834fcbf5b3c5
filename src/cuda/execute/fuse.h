/* Programs with fewer, larger steps, for the latency of a kernel.
 *
 * Steps keep their places, so that what is reported of one is said of the plan's operation; those
 * that another does are passed over: `jump` of a step that begins or ends no loop is the next one
 * to run. */
#ifndef CUDA_EXECUTE_FUSE_H
#define CUDA_EXECUTE_FUSE_H

#include <banyan/core.h>

#include "execute/engine.h"

/* Has arrays of its own, but for ends and spans. */
typedef struct fused_program {
    engine_program program;
    engine_block *blocks;
    engine_step *steps;
    uint32_t *operands;
    uint64_t *words;
} fused_program;

/* Parts of an operation that have one source become one step with several destinations. */
banyan_status fuse_program(const engine_program *from, fused_program *fused);
void fuse_free(fused_program *fused);

#endif
