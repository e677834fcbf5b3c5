/* Work in the background that several threads share. */
#ifndef PUBLISH_PARALLEL_H
#define PUBLISH_PARALLEL_H

#include <stddef.h>

/* The most threads of one call. */
#define PARALLEL_WORKERS 4

/* Work on item `i`. Threads that work at the same time have different numbers below
 * PARALLEL_WORKERS. */
typedef void (*parallel_work)(void *context, int worker, size_t i);

/* Call `work` for each i below `count`, in any order, by this thread and up to three others of its
 * priority: at most one for each four processors, or both of two. Return when all are done. A
 * thread that cannot start is done without. */
void parallel_run(size_t count, parallel_work work, void *context);

#endif
