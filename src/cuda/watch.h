/* Threads that look, again and again, whether all is well, while a device waits for its peers. */
#ifndef CUDA_WATCH_H
#define CUDA_WATCH_H

#include <banyan/world.h>

typedef struct watch watch;

/* Calls `look` every 10 ms, until it returns false or the watch is ended. */
banyan_status watch_start(bool (*look)(void *context), void *context, watch **started);
/* Once banyan_world_check fails, *stop becomes 1. */
banyan_status watch_world(banyan_world *world, uint32_t *stop, watch **started);
/* `look` is not under way when it returns. NULL is ignored. */
void watch_end(watch *ended);

#endif
