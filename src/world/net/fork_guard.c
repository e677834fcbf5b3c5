#include "world/net/fork_guard.h"

#include <stddef.h>

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t install_once = PTHREAD_ONCE_INIT;
static struct fork_guard *list;

static void before_fork(void)
{
    pthread_mutex_lock(&list_lock);
    for (struct fork_guard *guard = list; guard; guard = guard->next)
        pthread_mutex_lock(guard->lock);
}

static void fork_guard_release_all(void)
{
    for (struct fork_guard *guard = list; guard; guard = guard->next)
        pthread_mutex_unlock(guard->lock);
    pthread_mutex_unlock(&list_lock);
}

/* The child cannot use what it inherited. It also forgets the guards, so that they do not run again
 * in a child of its own. */
static void in_child(void)
{
    fork_guard_release_all();
    struct fork_guard *guard = list;
    list = NULL;
    for (struct fork_guard *next; guard; guard = next) {
        next = guard->next;
        guard->previous = NULL;
        guard->in_child(guard->owner);
    }
}

static void fork_guard_install(void)
{
    pthread_atfork(before_fork, fork_guard_release_all, in_child);
}

void fork_guard_add(struct fork_guard *guard)
{
    pthread_once(&install_once, fork_guard_install);
    pthread_mutex_lock(&list_lock);
    guard->next = list;
    guard->previous = &list;
    if (list)
        list->previous = &guard->next;
    list = guard;
    pthread_mutex_unlock(&list_lock);
}

void fork_guard_remove(struct fork_guard *guard)
{
    pthread_mutex_lock(&list_lock);
    if (guard->previous) {
        *guard->previous = guard->next;
        if (guard->next)
            guard->next->previous = guard->previous;
    }
    pthread_mutex_unlock(&list_lock);
}
