/* Signals between ranks of a node, and between the thread blocks of a rank: counters in memory that
 * both sides have mapped. One side waits for each counter.
 *
 * A counter only grows. The waiter stores how much of it has been consumed. Each add rings the
 * doorbell of the waiting rank; that costs almost nothing while the rank is awake. */
#ifndef CHANNEL_COUNTER_H
#define CHANNEL_COUNTER_H

#include "memory/staging/wake_up.h"

/* One cache line. A zeroed counter is ready for use. */
typedef struct counter {
    _Alignas(64) _Atomic uint64_t value;
} counter;

/* Release: a thread that sees the new value sees everything the signaller did before. */
static inline void counter_add(counter *c, uint64_t add)
{
    atomic_fetch_add_explicit(&c->value, add, memory_order_release);
}

static inline uint64_t counter_read(const counter *c)
{
    return atomic_load_explicit(&((counter *)c)->value, memory_order_acquire);
}

#endif
