#include "cuda/runtime/thread.h"

#include <signal.h>
#include <string.h>

banyan_status module_thread_start(pthread_t *thread, void *(*run)(void *), void *argument,
                                  const char *what)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(thread, NULL, run, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failed ? banyan_error_set(BANYAN_ERR_SYSTEM, "cuda: no thread for %s: %s", what,
                                     strerror(failed))
                  : BANYAN_OK;
}
