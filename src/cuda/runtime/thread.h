/* Threads of the module's own. */
#ifndef CUDA_RUNTIME_THREAD_H
#define CUDA_RUNTIME_THREAD_H

#include <pthread.h>

#include <banyan/core.h>

/* Start one that no signal of the program's is delivered to. SYSTEM: "cuda: no thread for …". */
banyan_status module_thread_start(pthread_t *thread, void *(*run)(void *), void *argument,
                                  const char *what);

#endif
