/* Threads of the library, sleeping on a word of memory, and requests. */
#ifndef CORE_THREADS_THREAD_H
#define CORE_THREADS_THREAD_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include <banyan/core.h>

/* Start a thread with all signals blocked. */
banyan_status thread_start(pthread_t *thread, void *(*run)(void *), void *argument, bool detached);

/* Sleep on a word shared by threads or, in shared memory, by processes, while *word == expected, at
 * most `timeout_ns`. May return early for any reason. */
void futex_wait(_Atomic uint32_t *word, uint32_t expected, uint64_t timeout_ns);
void futex_wake_all(_Atomic uint32_t *word);

/* Tell the core that this is a spin loop. */
static inline void spin_pause(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Run `work(context)` on its own thread. The waiter gets its status and its message. */
banyan_status request_start(banyan_status (*work)(void *context), void *context,
                            banyan_request **request);

#endif
