/* Sleep on a 32-bit word shared by threads or, in shared memory, by processes. */
#ifndef CORE_THREADS_FUTEX_H
#define CORE_THREADS_FUTEX_H

#include <stdatomic.h>
#include <stdint.h>

/* Sleep while *word == expected, at most `timeout_ns`. May return early for any reason. */
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

#endif
