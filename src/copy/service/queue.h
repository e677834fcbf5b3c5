/* Operations that were submitted to a service and not yet run. */
#ifndef COPY_SERVICE_QUEUE_H
#define COPY_SERVICE_QUEUE_H

#include <banyan/copy.h>

#include "core/containers.h"

typedef struct copy_op_list {
    banyan_copy_op *data;
    size_t count, capacity;
} copy_op_list;

/* A zeroed queue is empty. */
typedef struct copy_queue {
    copy_op_list sends, recvs;
    arena shapes; /* the queue's copies of shapes and strides */
} copy_queue;

/* Check one side of a task and append it, copying shape and strides. INVALID names the backend, the
 * rank, the task and its peer. `device` is where the service's tensors lie. */
banyan_status copy_queue_add(copy_queue *queue, const banyan_copy_backend *backend,
                             const banyan_world *world, DLDevice device, const banyan_copy_op *op,
                             bool is_send);

void copy_queue_free(copy_queue *queue);

#endif
