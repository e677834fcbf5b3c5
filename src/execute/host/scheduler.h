/* Schedules a rank's thread blocks on its threads. */
#ifndef EXECUTE_HOST_SCHEDULER_H
#define EXECUTE_HOST_SCHEDULER_H

#include "execute/host/task.h"

/* Run every `stride`-th thread block from `first` on until all are done. The calling thread sleeps
 * only when none of them can go on. Fails, with a message, when the world ends, after the world's
 * timeout, or, without a message, when another thread stops `of`. */
banyan_status scheduler_run(plan_run *of, uint32_t first, uint32_t stride, trace_ring *ring);

#endif
