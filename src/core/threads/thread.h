/* Threads of the library. */
#ifndef CORE_THREADS_THREAD_H
#define CORE_THREADS_THREAD_H

#include <pthread.h>

#include <banyan/core.h>

/* Start one that no signal of the user's is delivered to. */
banyan_status thread_start(pthread_t *thread, void *(*run)(void *), void *argument, bool detached);

#endif
