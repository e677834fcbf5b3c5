/* Work in the background that several threads share. */
#ifndef PUBLISH_PARALLEL_H
#define PUBLISH_PARALLEL_H

#include <stddef.h>

/* Call `work(context, i)` for each i below `count`, in any order, by this thread and up to three
 * others of its priority: at most one for each four processors, or both of two. Return when all are
 * done. A thread that cannot start is done without. */
void parallel_run(size_t count, void (*work)(void *context, size_t i), void *context);

#endif
