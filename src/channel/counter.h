/* Signals between ranks of a node, and between the thread blocks of a rank: counters in memory that
 * both sides have mapped, each waited for by one side.
 *
 * A counter only grows. The waiter keeps how far it has consumed it. Whoever adds to a counter
 * knocks on the wake-up of the rank that waits, which costs next to nothing while that rank is
 * awake.
 */
#ifndef CHANNEL_COUNTER_H
#define CHANNEL_COUNTER_H

#include "memory/staging/wake_up.h"

/* A cache line of its own. Zeroed is ready. */
typedef struct counter {
    _Alignas(64) _Atomic uint64_t value;
} counter;

/* What the signaller did before is visible to whoever sees the new value. */
static inline void counter_add(counter *c, uint64_t add)
{
    atomic_fetch_add_explicit(&c->value, add, memory_order_release);
}

static inline uint64_t counter_read(const counter *c)
{
    return atomic_load_explicit(&((counter *)c)->value, memory_order_acquire);
}

/* Relaxed: tells that something has happened, and publishes nothing. */
static inline void counter_add_relaxed(counter *c, uint64_t add)
{
    atomic_fetch_add_explicit(&c->value, add, memory_order_relaxed);
}

static inline uint64_t counter_read_relaxed(const counter *c)
{
    return atomic_load_explicit(&((counter *)c)->value, memory_order_relaxed);
}

#endif
