#include "mixed/live.h"

#include <pthread.h>

#include "core/containers.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static ARRAY(const banyan_mixed *) live;

bool live_add(const banyan_mixed *mixed)
{
    pthread_mutex_lock(&lock);
    bool added = array_push(&live, mixed);
    pthread_mutex_unlock(&lock);
    return added;
}

bool live_remove(const banyan_mixed *mixed)
{
    pthread_mutex_lock(&lock);
    size_t at = 0;
    while (at < live.count && live.data[at] != mixed)
        at++;
    bool found = at < live.count;
    if (found)
        live.data[at] = live.data[--live.count];
    if (live.count == 0)
        array_free(&live);
    pthread_mutex_unlock(&lock);
    return found;
}
