#include "core/threads/thread.h"

#include <signal.h>
#include <string.h>

#include "core/error.h"

banyan_status thread_start(pthread_t *thread, void *(*run)(void *), void *argument, bool detached)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_t started;
    int error = pthread_create(&started, NULL, run, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0)
        return error_set(BANYAN_ERR_SYSTEM, "cannot start a thread: %s", strerror(error));
    if (detached)
        pthread_detach(started);
    else
        *thread = started;
    return BANYAN_OK;
}
