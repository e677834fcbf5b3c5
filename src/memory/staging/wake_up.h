/* Waking a sleeper through shared memory, without a system call when nobody sleeps.
 *
 * Change something, then ring. The waiter reads the wake-up, looks for the change, and sleeps only
 * if the wake-up has not rung since. Works between threads and, in shared memory, between
 * processes. */
#ifndef MEMORY_STAGING_WAKE_UP_H
#define MEMORY_STAGING_WAKE_UP_H

#include <stdbool.h>
#include <stdint.h>

#include "core/threads/futex.h"
#include "core/threads/sanitizer.h"

/* A cache line of its own. Zeroed is ready. */
typedef struct wake_up {
    _Alignas(64) _Atomic uint32_t rings;
    _Atomic uint32_t sleepers;
} wake_up;

static inline uint32_t wake_up_read(wake_up *b)
{
    return atomic_load_explicit(&b->rings, memory_order_acquire);
}

/* Sequential consistency: either the sleeper sees this ring, or this sees the sleeper. */
static inline void wake_up_notify(wake_up *b)
{
    atomic_fetch_add_explicit(&b->rings, 1, memory_order_seq_cst);
    if (atomic_load_explicit(&b->sleepers, memory_order_seq_cst) != 0)
        futex_wake_all(&b->rings);
}

/* Sleep until the wake-up rings after `seen` was read, `timeout_ns` at most. May return early. */
static inline void wake_up_sleep(wake_up *b, uint32_t seen, uint64_t timeout_ns)
{
    atomic_fetch_add_explicit(&b->sleepers, 1, memory_order_seq_cst);
    if (atomic_load_explicit(&b->rings, memory_order_seq_cst) == seen)
        futex_wait(&b->rings, seen, timeout_ns);
    atomic_fetch_sub_explicit(&b->sleepers, 1, memory_order_relaxed);
}

/* ---- knocking ---- */

/* Cheaper where changes are frequent and sleepers rare: who changes something only looks for
 * sleepers, and those look for the change once more after they have announced themselves. All who
 * sleep on a wake-up that is knocked on must do so; wake_up_notify reaches them, too.
 *
 *     seen = wake_up_announce(b);
 *     if (nothing has changed)
 *         wake_up_sleep_announced(b, seen, timeout_ns);
 *     wake_up_withdraw(b);
 *
 * Why nobody sleeps through a change: of the fences in wake_up_doorbell and wake_up_announce, one
 * is first. If the knocker's is, the sleeper's look, which follows its fence, finds the change,
 * which comes before the knocker's. If the sleeper's is, the knocker, which looks after its own
 * fence, finds the sleeper announced (or withdrawn, hence awake) and rings. That ring either comes
 * after the sleeper read `seen`, which no longer holds when it goes to sleep; or before, and then
 * the sleeper, having read what the knocker released, finds the change. */
static inline void wake_up_doorbell(wake_up *b)
{
#ifdef SANITIZER_THREAD
    /* It does not know fences. Of two read-modify-writes one is first, too. */
    if (atomic_fetch_add_explicit(&b->sleepers, 0, memory_order_seq_cst) == 0)
        return;
#else
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load_explicit(&b->sleepers, memory_order_relaxed) == 0)
        return;
#endif
    atomic_fetch_add_explicit(&b->rings, 1, memory_order_release);
    futex_wake_all(&b->rings);
}

static inline uint32_t wake_up_announce(wake_up *b)
{
    atomic_fetch_add_explicit(&b->sleepers, 1, memory_order_seq_cst);
    uint32_t seen = wake_up_read(b);
#ifndef SANITIZER_THREAD
    atomic_thread_fence(memory_order_seq_cst);
#endif
    return seen;
}

/* `timeout_ns` at most. May return early. */
static inline void wake_up_sleep_announced(wake_up *b, uint32_t seen, uint64_t timeout_ns)
{
    futex_wait(&b->rings, seen, timeout_ns);
}

static inline void wake_up_withdraw(wake_up *b)
{
    atomic_fetch_sub_explicit(&b->sleepers, 1, memory_order_relaxed);
}

/* ---- waiting ---- */

/* Spins of a wait before it sleeps: for about as long as sleeping and waking take, and hardly any
 * where threads share processors, since then whoever is waited for needs this one. */
static inline uint32_t wake_up_spins(bool crowded)
{
    return crowded ? 20 : 200;
}

/* Longest sleep between two looks at the world's health. */
#define WAKE_UP_NAP_NS UINT64_C(100000000)

#endif
