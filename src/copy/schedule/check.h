/* Check how the pipeline's executors use their slots: execute all ranks' steps in this process,
 * without memory or signals. */
#ifndef COPY_SCHEDULE_CHECK_H
#define COPY_SCHEDULE_CHECK_H

#include <banyan/pipeline.h>

#include "core/containers.h"

typedef enum pipeline_step_kind {
    PIPELINE_GRANT,  /* give a receive slot to the peer */
    PIPELINE_UNPACK, /* wait for the peer's batch in the slot, and empty it */
    PIPELINE_PACK,   /* fill a send slot */
    PIPELINE_SEND    /* wait for a grant of the peer, and empty the send slot into it */
} pipeline_step_kind;

typedef struct pipeline_step {
    pipeline_step_kind kind;
    int peer, slot;
    uint64_t bytes; /* of the batch; a grant has none */
} pipeline_step;

typedef ARRAY(pipeline_step) pipeline_step_list;

/* A rank's steps in either direction, in order. The directions do not wait for each other. */
typedef struct pipeline_steps {
    pipeline_step_list sending, receiving;
} pipeline_steps;

/* Append to empty lists the steps that the executor takes for these iterations: a slot is granted
 * again, or packed again, behind the step that empties it. NO_MEMORY. */
banyan_status pipeline_steps_of(const banyan_iteration *iterations, size_t count,
                                pipeline_steps *steps);
void pipeline_steps_free(pipeline_steps *steps);

typedef enum pipeline_fault {
    PIPELINE_FAULT_SLOT,  /* a slot is used again before it is emptied */
    PIPELINE_FAULT_STUCK, /* an expected grant or batch never comes, or one is left over */
    PIPELINE_FAULT_BYTES  /* a batch is larger than a slot, or than its other end expects */
} pipeline_fault;

/* Report a fault of `rank`. An error ends the check. */
typedef banyan_status (*pipeline_fault_fn)(void *context, pipeline_fault fault, int rank,
                                           const char *message);

/* Execute the steps of all ranks; steps[i] is rank i's. Steps only enable other steps, so one order
 * finds every fault of all orders. Errors: NO_MEMORY, and the callback's. */
banyan_status pipeline_steps_check(const pipeline_steps *steps, int ranks, uint64_t slot_bytes,
                                   pipeline_fault_fn report, void *context);

#endif
