/* The pipeline's third stage: senders send receivers the contents of each batch. */
#ifndef COPY_SCHEDULE_EXCHANGE_H
#define COPY_SCHEDULE_EXCHANGE_H

#include <banyan/world.h>

#include "copy/schedule/batch.h"
#include "core/containers.h"

/* Everything that goes one way between this rank and another. */
typedef struct pipeline_flow {
    int peer;
    const pipeline_task *tasks; /* in the order that both ends know */
    size_t task_count;
    pipeline_batches batches;
} pipeline_flow;

void pipeline_flow_free(pipeline_flow *flow);

/* Write the message about a flow: for each batch, the task and the element count of every segment.
 * The receiver derives the rest: in a slot segments come one after another at multiples of 16
 * bytes, and a task's segments come in order. A failed write sticks in the writer. */
void pipeline_flow_write(const pipeline_flow *flow, bytes_writer *message);

/* Set the flow's batches from its peer's message. FORMAT, naming `rank`, the peer and the place,
 * for a message that is malformed or does not bring every element of every task of this rank once
 * and in slots of `slot_bytes`; NO_MEMORY. The batches are set only on success. */
banyan_status pipeline_flow_read(int rank, const void *data, size_t bytes, uint64_t slot_bytes,
                                 pipeline_flow *flow);

/* Send the flows of `sends` to their receivers, and set the batches of `recvs` from their senders'
 * messages. A rank whose planning failed passes its status as `mine`, with any flows of `sends`
 * unset. The call returns that status there; its partners, whose flows stay empty, continue: agree
 * afterwards. Collective. */
banyan_status pipeline_exchange(banyan_world *world, banyan_status mine, const pipeline_flow *sends,
                                size_t send_count, uint64_t slot_bytes, pipeline_flow *recvs,
                                size_t recv_count);

#endif
