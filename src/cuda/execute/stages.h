/* Programs with port channels, divided into stages that run in the order of streams, without a
 * proxy. Kernels do the work of thread blocks between puts. Between the kernels, copy engines do
 * the puts of all thread blocks together.
 *
 * Adjacent puts become one copy. The signals behind a stage of copies become one small kernel, or
 * the beginning of the next stage's kernel. While a kernel runs, it never waits for copies of its
 * own rank. A kernel that waits for a peer's signal follows this rank's own signal at that position
 * of the plan (the end's mirror, see engine_end), if that signal precedes the wait in the plan.
 * Otherwise the kernel follows all earlier puts.
 *
 * Stages serve plans in which all thread blocks do the same operations and wait only for signals of
 * earlier positions (engine_plan). In such a plan a rank may execute its stages one after another,
 * in any order that these rules permit, whatever hardware queues its streams share.
 *
 * Proof: suppose that all ranks are blocked. Consider a rank whose kernel is earliest in the plan.
 * The signal that this kernel waits for belongs to an earlier position. The peer's kernel is not
 * earlier, so the peer has executed everything before that position, as this rank has. This rank
 * gave its own signal of that position before its kernel began, so the peer has given its signal of
 * that position too: the kernel is not blocked, a contradiction. */
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
    bool is_signalled; /* for copies: the next stage is a kernel that signals their end */
    uint32_t first_step, end_step; /* of every thread block */
    uint32_t after;                /* the stage of copies that must precede a kernel; STAGE_NONE */
    uint32_t first_copy, copy_count;
    uint32_t first_signal, signal_count;
} stage;

/* The stages in the order in which they are queued. Each kernel comes after the kernel before it,
 * and copies come after all kernels before them. The first and the last stage are kernels. The last
 * one comes after all copies. */
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
