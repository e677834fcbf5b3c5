/* A rank's schedule as input of a GPU pipeline: every batch with its moves, and the slot that it
 * travels to. */
#ifndef COPY_PIPELINE_STEPS_H
#define COPY_PIPELINE_STEPS_H

#include "copy/pipeline/gpu_pipeline.h"
#include "copy/schedule/plan.h"

typedef struct gpu_pipeline_steps {
    gpu_pipeline_step *list;
    size_t count;
    direct_moves *moves; /* moves that the list refers to */
    size_t move_count;
    direct_moves local;
} gpu_pipeline_steps;

/* Make the steps. Each receiver sends its senders the slots that it will grant. An error of any
 * rank is an error at every rank. Collective. */
banyan_status gpu_pipeline_steps_make(banyan_world *world, const pipeline_schedule *schedule,
                                      const gpu_pipeline_slots *slots, gpu_pipeline_steps *steps);
void gpu_pipeline_steps_free(gpu_pipeline_steps *steps);

#endif
