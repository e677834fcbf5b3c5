/* Programs with port channels as stages, which a stream's order drives in place of a proxy:
 * kernels for the thread blocks' work between puts, and between them the puts of all thread blocks
 * together.
 *
 * Puts that are adjacent become one copy. All signals after them become one kernel, or the
 * beginning of the next. No kernel waits for copies of its own rank while it runs. A kernel that
 * waits for a peer's signal comes after this rank's own signal of that position in the plan
 * (engine_end's mirror), if the plan has it before the wait; otherwise after all earlier puts.
 *
 * This serves plans whose thread blocks are all identical, and wait only for signals of earlier
 * positions (engine_plan). A rank may then execute its stages one after another in any order that
 * these rules permit, whatever queues its streams share. Proof: suppose that all ranks are
 * blocked, and consider a rank whose kernel is earliest in the plan. The signal that it waits for
 * belongs to an earlier position. The peer's kernel is not earlier, so the peer has come as far as
 * this rank: then it has given that signal, as this rank gave its own of that position before the
 * kernel began. */
#ifndef CUDA_EXECUTE_STAGES_H
#define CUDA_EXECUTE_STAGES_H

#include <banyan/core.h>

#include "execute/device/engine.h"

/* Rows of `bytes` bytes at distances of the pitches. Bases are a run's, by step_base. */
typedef struct stage_copy {
    uint32_t from_base, to_base;
    uint64_t from, to, bytes;
    uint64_t rows, from_pitch, to_pitch; /* one row: no pitches */
} stage_copy;

#define STAGE_NONE UINT32_MAX

typedef struct stage {
    bool is_kernel;
    bool is_told; /* for copies: the next stage is a kernel that signals their end */
    uint32_t first_step, end_step; /* of every thread block */
    uint32_t after;                /* the stage of copies that must precede a kernel; STAGE_NONE */
    uint32_t first_copy, copy_count;
    uint32_t first_signal, signal_count;
} stage;

/* In queueing order: kernels one after another, copies after the kernels before them. The first
 * and the last stage are kernels, and all copies precede the last. */
typedef struct stages {
    stage *list;
    uint32_t count;
    stage_copy *copies;
    uint32_t copy_count;
    uint32_t *signals; /* ends to signal, by number */
    uint32_t signal_count;
} stages;

/* Make the stages of a fused program (fuse.h). `*made` is NULL if it has no puts, or needs a
 * proxy; equal for all programs of a plan. */
banyan_status stages_make(const engine_program *program, const engine_plan *plan, stages **made);
void stages_free(stages *old);

#endif
