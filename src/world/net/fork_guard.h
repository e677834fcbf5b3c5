/* Children that the user's program forks must not keep this process's connections open, or read
 * from them: their copies are closed right after the fork. */
#ifndef WORLD_NET_FORK_GUARD_H
#define WORLD_NET_FORK_GUARD_H

#include <pthread.h>

struct fork_guard {
    struct fork_guard *next, **previous;
    pthread_mutex_t *lock; /* held over the fork, so that in_child sees consistent data */
    void (*in_child)(void *owner);
    void *owner;
};

void fork_guard_add(struct fork_guard *guard);
void fork_guard_remove(struct fork_guard *guard);

#endif
