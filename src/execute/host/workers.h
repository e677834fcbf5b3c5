/* Threads that work on one thing at a time together with the thread that calls them. */
#ifndef EXECUTE_HOST_WORKERS_H
#define EXECUTE_HOST_WORKERS_H

#include <banyan/core.h>

typedef struct worker_pool worker_pool;

/* `count` ≥ 2 in all, the calling thread among them. */
banyan_status workers_create(int count, bool crowded, worker_pool **made);
/* NULL is ignored. */
void workers_destroy(worker_pool *all);

/* work(context, i) for every i below the count, each on its thread, 0 on the calling one; returns
 * when all have. */
void workers_run(worker_pool *all, void (*work)(void *context, int worker), void *context);

#endif
