/* Turn a batch of the copy service into a schedule of the pipeline: all stages but the last. */
#ifndef COPY_SCHEDULE_PLAN_H
#define COPY_SCHEDULE_PLAN_H

#include <banyan/pipeline.h>

#include "copy/strided/view.h"
#include "core/containers.h"

/* Formats of a segment's elements in its tensor and in the slot. They differ at the end that
 * converts. Scales in a slot count blocks; the segment counts the elements of its tensor. */
typedef struct pipeline_formats {
    strided_format tensor, slot;
} pipeline_formats;

/* Everything that runs need: copies of all that the caller may free, in one arena. */
typedef struct pipeline_schedule {
    arena memory;
    const banyan_iteration *iterations;
    /* One for each segment of an iteration's batch; NULL for a direction without a batch. */
    const pipeline_formats **send_formats, **recv_formats;
    const uint64_t
        *rounds; /* of each iteration, ascending: both ends of a batch know it by one number */
    size_t iteration_count;
    uint64_t recv_bytes;         /* through slots */
    const banyan_send_op *sends; /* of moves within the rank */
    const banyan_recv_op *recvs;
    const banyan_copy_pair *local;
    size_t local_count;
} pipeline_schedule;

/* Match the batch with the partners' batches, then cut, pack, exchange and order it. An error of
 * any rank is an error at every rank. `transport` NULL: it reaches all ranks. Collective. */
banyan_status pipeline_plan(banyan_world *world, banyan_transport *transport, uint64_t slot_bytes,
                            bool optimal_rounds, const banyan_copy_batch *batch,
                            pipeline_schedule *schedule);
void pipeline_schedule_free(pipeline_schedule *schedule);

#endif
