/* Runs of programs that are stages (stages.h). */
#ifndef CUDA_EXECUTE_STAGED_H
#define CUDA_EXECUTE_STAGED_H

#include "cuda/execute/engine.h"

typedef struct cuda_staged cuda_staged;

/* `*made` is NULL for programs that are not stages. */
banyan_status staged_make(const cuda_plan *plan, const engine_program *fused, cuda_staged **made);
void staged_free(const cuda_plan *plan, cuda_staged *old);

/* The device is entered. */
banyan_status staged_queue(const cuda_program *program, const engine_run *run, CUstream stream);

/* Call it after the last program. */
void staged_end(cuda_engine *engine);

#endif
