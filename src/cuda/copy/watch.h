/* A thread that tells a device when its world is no longer well. */
#ifndef CUDA_COPY_WATCH_H
#define CUDA_COPY_WATCH_H

#include <banyan/world.h>

typedef struct copy_watch copy_watch;

/* Once banyan_world_check fails, *stop becomes 1. */
banyan_status copy_watch_start(banyan_world *world, uint32_t *stop, copy_watch **watch);
/* NULL is ignored. */
void copy_watch_end(copy_watch *watch);

#endif
