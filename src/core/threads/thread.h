/* Threads of the library. */
#ifndef CORE_THREADS_THREAD_H
#define CORE_THREADS_THREAD_H

#include <pthread.h>

#include <banyan/core.h>

/* Start a thread with all signals blocked. */
banyan_status thread_start(pthread_t *thread, void *(*run)(void *), void *argument, bool detached);

#endif
