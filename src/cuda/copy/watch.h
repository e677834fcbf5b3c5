/* A thread that looks, again and again, whether all is well. */
#ifndef CUDA_COPY_WATCH_H
#define CUDA_COPY_WATCH_H

#include <banyan/core.h>

typedef struct copy_watch copy_watch;

/* Calls `look` every 10 ms, until it returns false or the watch is ended. */
banyan_status copy_watch_start(bool (*look)(void *context), void *context, copy_watch **watch);
/* `look` is not under way when it returns. NULL is ignored. */
void copy_watch_end(copy_watch *watch);

#endif
