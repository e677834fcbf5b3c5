/* Programs in the form that the kernel runs: fewer, larger steps, for lower latency.
 *
 * Parts of an operation that read one source become one step with several destinations. Parts that
 * differ only in their operands' places become one step with all their pieces, which are processed
 * side by side. Steps keep their places, so that a report of a step refers to the plan's operation.
 * In a step that begins or ends no loop, `jump` is the next step to run. A step that another one
 * performs is KERNEL_PASS. */
#ifndef CUDA_EXECUTE_FUSE_H
#define CUDA_EXECUTE_FUSE_H

#include <banyan/core.h>

#include "execute/device/engine.h"

/* It has its own arrays, except for ends and spans, and no operands: words are KERNEL_PLACE. */
typedef struct fused_program {
    engine_program program;
    engine_block *blocks;
    engine_step *steps;
    uint64_t *words;
} fused_program;

banyan_status fuse_program(const engine_program *from, fused_program *fused);
void fuse_free(fused_program *fused);

#endif
