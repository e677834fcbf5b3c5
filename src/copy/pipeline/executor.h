/* Internals of the executor that the pipeline backend calls directly. */
#ifndef COPY_PIPELINE_EXECUTOR_H
#define COPY_PIPELINE_EXECUTOR_H

#include <banyan/pipeline.h>

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
                           size_t count);

/* banyan_pipeline_self_moves with the pairs known. */
banyan_status pipeline_move_pairs(const banyan_pipeline *pipeline, const banyan_send_op *sends,
                                  const banyan_recv_op *recvs, const banyan_copy_pair *pairs,
                                  size_t count);

#endif
