/* Programs as the kernel runs them: with fewer, larger steps, for its latency.
 *
 * Parts of an operation that read the same bytes become one step with several destinations; others
 * that differ in their operands' places alone become one step with all their pieces, which go on
 * side by side. Steps keep their places, so that what is reported of one is said of the plan's
 * operation: `jump` of a step that begins or ends no loop is the next one to run, and those that
 * another does are KERNEL_PASS. */
#ifndef CUDA_EXECUTE_FUSE_H
#define CUDA_EXECUTE_FUSE_H

#include <banyan/core.h>

#include "execute/device/engine.h"

/* Has arrays of its own, but for ends and spans, and no operands: words are KERNEL_PLACE. */
typedef struct fused_program {
    engine_program program;
    engine_block *blocks;
    engine_step *steps;
    uint64_t *words;
} fused_program;

banyan_status fuse_program(const engine_program *from, fused_program *fused);
void fuse_free(fused_program *fused);

#endif
