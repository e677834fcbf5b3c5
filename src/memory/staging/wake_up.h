/* Wake a sleeper through shared memory, without a system call when nobody sleeps.
 *
 * Make the change, then ring. The waiter reads the wake-up, looks for the change, and sleeps only
 * if it has not rung since. Works between threads and, in shared memory, between processes. */
#ifndef MEMORY_STAGING_WAKE_UP_H
#define MEMORY_STAGING_WAKE_UP_H

#include <stdbool.h>
#include <stdint.h>

#include "core/threads/sanitizer.h"
#include "core/threads/thread.h"

/* A cache line of its own. Zeroed is ready. */
typedef struct wake_up {
    _Alignas(64) _Atomic uint32_t rings;
    _Atomic uint32_t sleepers;
} wake_up;

static inline uint32_t wake_up_read(wake_up *b)
{
    return atomic_load_explicit(&b->rings, memory_order_acquire);
}

/* Sequentially consistent: either the sleeper sees this ring, or this call sees the sleeper. */
static inline void wake_up_notify(wake_up *b)
{
    atomic_fetch_add_explicit(&b->rings, 1, memory_order_seq_cst);
    if (atomic_load_explicit(&b->sleepers, memory_order_seq_cst) != 0)
        futex_wake_all(&b->rings);
}

/* Sleep until the wake-up rings after `seen` was read, at most `timeout_ns`. May return early. */
static inline void wake_up_sleep(wake_up *b, uint32_t seen, uint64_t timeout_ns)
{
    atomic_fetch_add_explicit(&b->sleepers, 1, memory_order_seq_cst);
    if (atomic_load_explicit(&b->rings, memory_order_seq_cst) == seen)
        futex_wait(&b->rings, seen, timeout_ns);
    atomic_fetch_sub_explicit(&b->sleepers, 1, memory_order_relaxed);
}

/* A doorbell is cheaper than a notification where changes are frequent and sleepers rare. The
 * caller makes its change and then only checks for sleepers. A sleeper announces itself and then
 * looks for the change once more. All sleepers on a wake-up whose doorbell is used must do so;
 * wake_up_notify reaches them too.
 *
 *     seen = wake_up_announce(b);
 *     if (nothing has changed)
 *         wake_up_sleep_announced(b, seen, timeout_ns);
 *     wake_up_withdraw(b);
 *
 * Proof that nobody sleeps through a change: one of the two fences, in wake_up_doorbell and in
 * wake_up_announce, is first. If the doorbell's fence is first, the sleeper looks after its own
 * fence, so it finds the change, which precedes the doorbell's fence. If the sleeper's fence is
 * first, the doorbell looks after its own fence, so it finds the sleeper announced (or withdrawn,
 * hence awake) and rings. If that ring comes after the sleeper read `seen`, then `seen` no longer
 * holds when it goes to sleep, so it returns at once. If that ring comes before, the sleeper has
 * read what the doorbell's caller released, and finds the change. */
static inline void wake_up_doorbell(wake_up *b)
{
#ifdef SANITIZER_THREAD
    /* The sanitizer does not understand fences. Two read-modify-writes have an order, too. */
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

/* Sleep at most `timeout_ns`. May return early. */
static inline void wake_up_sleep_announced(wake_up *b, uint32_t seen, uint64_t timeout_ns)
{
    futex_wait(&b->rings, seen, timeout_ns);
}

static inline void wake_up_withdraw(wake_up *b)
{
    atomic_fetch_sub_explicit(&b->sleepers, 1, memory_order_relaxed);
}

/* Number of spins before a wait sleeps: about as long as sleeping and waking take. Almost none
 * where threads share processors, because the awaited thread may need this one. */
static inline uint32_t wake_up_spins(bool crowded)
{
    return crowded ? 20 : 200;
}

/* Longest sleep between two checks of the world's health. */
#define WAKE_UP_NAP_NS UINT64_C(100000000)

#endif
