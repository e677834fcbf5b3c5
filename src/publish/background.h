/* Threads of a publication or a subscription, and the worlds that they use. */
#ifndef PUBLISH_BACKGROUND_H
#define PUBLISH_BACKGROUND_H

#include <pthread.h>

#include <banyan/world.h>

/* Open a world of all ranks of `world`, for a thread of each: on all ranks or on none. Collective.
 * Errors: those of banyan_world_split. */
banyan_status background_world_open(banyan_world *world, banyan_world **threads);

/* Lower the priority of the calling thread, so that it slows the program's own work less. */
void background_lower_priority(void);

/* Wait on a condition until it is signalled, or until a time of CLOCK_MONOTONIC. May return early
 * for any reason. */
void background_wait(pthread_cond_t *changed, pthread_mutex_t *lock, uint64_t until_ns);

#endif
