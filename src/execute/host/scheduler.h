/* Taking turns among a rank's thread blocks. */
#ifndef EXECUTE_HOST_SCHEDULER_H
#define EXECUTE_HOST_SCHEDULER_H

#include "execute/host/task.h"

/* Run every `stride`-th thread block from `first` on until all are done. The calling thread sleeps
 * only when none of them can go on. Ends, with a sentence, when the world does, after the world's
 * timeout, or, without, when `of` is stopped elsewhere. */
banyan_status scheduler_run(plan_run *of, uint32_t first, uint32_t stride, trace_ring *ring);

#endif
