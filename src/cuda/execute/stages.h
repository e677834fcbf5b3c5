/* Programs with port channels as stages that a stream's order drives, in place of a proxy: kernels
 * with what thread blocks do between puts, and between them the puts, all thread blocks' at once.
 *
 * Puts that lie side by side become one copy, and all signals behind them one kernel, or the
 * beginning of the next. No kernel that runs waits for copies of its own rank: one that waits for
 * a peer's signal comes after this rank's own signal of the same place in the plan (engine_end's
 * twin), when the plan has it before the wait; after all puts before it otherwise.
 *
 * For plans whose thread blocks are all alike, and wait for signals of earlier places alone
 * (engine_plan): then a rank may go through its stages one after the other, in any order that these
 * rules leave, whatever queues its streams share. For let all ranks stand still, and look at one
 * whose kernel comes first in the plan. The signal that it waits for is of an earlier place. So is
 * the peer's kernel, or the peer has come as far as this rank: then it has given that signal, as
 * this rank has given its own of that place before the kernel began.
 */
#ifndef CUDA_EXECUTE_STAGES_H
#define CUDA_EXECUTE_STAGES_H

#include <banyan/core.h>

#include "execute/device/engine.h"

/* Rows of so many bytes, the next so far from the one before. Bases are a run's, by step_base. */
typedef struct stage_copy {
    uint32_t from_base, to_base;
    uint64_t from, to, bytes;
    uint64_t rows, from_pitch, to_pitch; /* of one row: no pitches */
} stage_copy;

#define STAGE_NONE UINT32_MAX

typedef struct stage {
    bool is_kernel;
    bool is_told;                  /* copies': by the next stage, which is a kernel behind them */
    uint32_t first_step, end_step; /* of every thread block */
    uint32_t after;                /* the stage of copies that a kernel begins after; STAGE_NONE */
    uint32_t first_copy, copy_count;
    uint32_t first_signal, signal_count;
} stage;

/* In the order in which they are queued: kernels one after the other, copies after the kernels
 * before them. The first and the last are kernels, and all copies are before the last. */
typedef struct stages {
    stage *list;
    uint32_t count;
    stage_copy *copies;
    uint32_t copy_count;
    uint32_t *signals; /* ends to be signalled, by number */
    uint32_t signal_count;
} stages;

/* Of a fused program (fuse.h). `*made` is NULL when it has no puts, or has to have a proxy: the
 * same for all programs of a plan. */
banyan_status stages_make(const engine_program *program, const engine_plan *plan, stages **made);
void stages_free(stages *old);

#endif
