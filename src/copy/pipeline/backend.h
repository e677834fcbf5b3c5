/* The copy backend "pipeline". */
#ifndef COPY_PIPELINE_BACKEND_H
#define COPY_PIPELINE_BACKEND_H

#include <banyan/copy.h>
#include <banyan/pipeline.h>

#include "copy/pipeline/gpu_pipeline.h"
#include "copy/schedule/plan.h"
#include "copy/service/progress.h"

extern const banyan_copy_backend copy_backend_pipeline;

/* Open the backend over a transport that the caller has opened; the backend owns it then, on
 * failure too. Collective. */
banyan_status pipeline_open_over(banyan_world *world, banyan_transport *transport,
                                 const banyan_copy_options *options, void **state);

/* A rank's schedule as input of a GPU pipeline: every batch with its moves, and the slot that it
 * travels to. */

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

/* Internals of the executor that the pipeline backend calls directly. */

struct banyan_pipeline {
    const banyan_pipeline_launcher *launcher;
    const banyan_pipeline_buffers *buffers;
    int rank;
    banyan_stream pack_stream, unpack_stream, send_stream, copy_stream;
    banyan_event pack_event[BANYAN_PIPELINE_SLOTS];
    banyan_event unpack_event[BANYAN_PIPELINE_SLOTS];
};

/* banyan_pipeline_execute in two steps: check once, then run any number of times. The run allocates
 * nothing. */
banyan_status pipeline_check(const banyan_pipeline *pipeline, const banyan_iteration *iterations,
                             size_t count);
banyan_status pipeline_run(const banyan_pipeline *pipeline, const banyan_iteration *iterations,
                           size_t count, copy_progress *progress);

/* banyan_pipeline_self_moves with the pairs known. */
banyan_status pipeline_move_pairs(const banyan_pipeline *pipeline, const banyan_send_op *sends,
                                  const banyan_recv_op *recvs, const banyan_copy_pair *pairs,
                                  size_t count);

/* The launcher for host memory, for a caller that knows how much a run moves. */

/* Return the launcher. It unpacks past the caches while `*past_caches` is set; the caller may
 * change that between executions. */
banyan_pipeline_launcher pipeline_host_launcher(const bool *past_caches);

#endif
