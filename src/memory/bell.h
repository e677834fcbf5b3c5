/* Waking a sleeper through shared memory, without a system call when nobody sleeps.
 *
 * Change something, then ring. The waiter reads the bell, looks for the change, and sleeps only if
 * the bell has not rung since. Works between threads and, in shared memory, between processes. */
#ifndef MEMORY_BELL_H
#define MEMORY_BELL_H

#include <stdbool.h>
#include <stdint.h>

#include "core/futex.h"

/* A cache line of its own. Zeroed is ready. */
typedef struct bell {
    _Alignas(64) _Atomic uint32_t rings;
    _Atomic uint32_t sleepers;
} bell;

static inline uint32_t bell_read(bell *b)
{
    return atomic_load_explicit(&b->rings, memory_order_acquire);
}

/* Sequential consistency: either the sleeper sees this ring, or this sees the sleeper. */
static inline void bell_ring(bell *b)
{
    atomic_fetch_add_explicit(&b->rings, 1, memory_order_seq_cst);
    if (atomic_load_explicit(&b->sleepers, memory_order_seq_cst) != 0)
        futex_wake_all(&b->rings);
}

/* Sleep until the bell rings after `seen` was read, `timeout_ns` at most. May return early. */
static inline void bell_sleep(bell *b, uint32_t seen, uint64_t timeout_ns)
{
    atomic_fetch_add_explicit(&b->sleepers, 1, memory_order_seq_cst);
    if (atomic_load_explicit(&b->rings, memory_order_seq_cst) == seen)
        futex_wait(&b->rings, seen, timeout_ns);
    atomic_fetch_sub_explicit(&b->sleepers, 1, memory_order_relaxed);
}

/* Spins of a wait before it sleeps: for about as long as sleeping and waking take, and hardly any
 * where threads share processors, since then whoever is waited for needs this one. */
static inline uint32_t bell_spins(bool crowded)
{
    return crowded ? 20 : 200;
}

/* Longest sleep between two looks at the world's health. */
#define BELL_NAP_NS UINT64_C(100000000)

#endif
