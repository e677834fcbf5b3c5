/* Threads that work together with their caller on one work item at a time. */
#ifndef EXECUTE_HOST_WORKERS_H
#define EXECUTE_HOST_WORKERS_H

#include <banyan/core.h>

typedef struct worker_pool worker_pool;

/* `count` ≥ 2 is the total, with the calling thread. */
banyan_status workers_create(int count, bool crowded, worker_pool **made);
/* Ignores NULL. */
void workers_destroy(worker_pool *all);

/* Call work(context, i) for every i below the count, each on its thread, 0 on the calling thread.
 * Returns when all calls have returned. */
void workers_run(worker_pool *all, void (*work)(void *context, int worker), void *context);

#endif
