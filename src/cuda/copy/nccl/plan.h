/* A batch as groups of NCCL's sends and receives.
 *
 * A group with a whole model deadlocks inside NCCL, so tasks are divided into windows. Both ends
 * give the tasks between them one numbering, and a task's window follows from its number alone. So
 * whatever group one end waits in, the other end is in that group, or reaches it before it waits
 * for anything else. */
#ifndef CUDA_COPY_NCCL_PLAN_H
#define CUDA_COPY_NCCL_PLAN_H

#include <banyan/copy.h>

#include "cuda/copy/nccl/session.h"

/* A task with another rank. */
typedef struct nccl_task {
    banyan_copy_op op; /* with the plan's own shape and strides */
    int64_t shape[BANYAN_MAX_DIMS], strides[BANYAN_MAX_DIMS];
    size_t order; /* index at submission */
    uint64_t bytes;
    bool is_send, is_packed; /* packed: travels through staging memory */
    size_t window;
    size_t staged_at; /* offset in its window's staging memory */
} nccl_task;

typedef struct nccl_window {
    size_t first, count; /* of tasks and messages */
    bool packs, unpacks;
} nccl_window;

typedef struct nccl_plan {
    nccl_task *tasks; /* sorted by window */
    nccl_message
        *messages; /* sorted by window; for staged ones, data is an offset until nccl_plan_place */
    size_t count;
    nccl_window *windows;
    size_t window_count;
    size_t staging_bytes;
} nccl_plan;

/* Local. Call it after the batch was found to match the partners'. Tasks without bytes are
 * dropped. */
banyan_status nccl_plan_make(const banyan_copy_batch *batch, int rank, int ranks, nccl_plan *plan);
/* Set the address of the staging memory. */
void nccl_plan_place(nccl_plan *plan, char *staging);
void nccl_plan_free(nccl_plan *plan);

/* Return the task's bytes as a contiguous tensor in its window's staging memory. */
DLTensor nccl_task_staged(const nccl_task *task, char *staging);

#endif
