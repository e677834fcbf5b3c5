/* A rank's schedule of the pipeline as a courier takes it: every batch with its moves, and the slot
 * that it travels to. */
#ifndef COPY_PIPELINE_STEPS_H
#define COPY_PIPELINE_STEPS_H

#include "copy/pipeline/gpu_pipeline.h"
#include "copy/schedule/plan.h"

typedef struct courier_steps {
    courier_step *list;
    size_t count;
    direct_moves *moves; /* what the list points into */
    size_t move_count;
    direct_moves local;
} courier_steps;

/* Ranks tell those they receive from which slots they will grant. Every rank gets an error when any
 * has one. Collective. */
banyan_status courier_steps_make(banyan_world *world, const pipeline_schedule *schedule,
                                 const courier_slots *slots, courier_steps *steps);
void courier_steps_free(courier_steps *steps);

#endif
