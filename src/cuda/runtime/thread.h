/* Threads of the module. */
#ifndef CUDA_RUNTIME_THREAD_H
#define CUDA_RUNTIME_THREAD_H

#include <pthread.h>

#include <banyan/core.h>

/* Start a thread that receives none of the program's signals. SYSTEM: "cuda: no thread for …". */
banyan_status module_thread_start(pthread_t *thread, void *(*run)(void *), void *argument,
                                  const char *what);

#endif
