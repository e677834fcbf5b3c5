#include "core/interrupt.h"

#include <banyan/core.h>

#include "core/deadline.h"

#define INTERRUPT_PERIOD_NS (50 * NS_PER_MS)

static _Atomic(banyan_interrupt_fn) interrupt_fn;
static void *_Atomic interrupt_context;
static _Thread_local uint64_t interrupt_next_ns;
static _Thread_local const atomic_bool *interrupt_other;
static _Thread_local unsigned interrupts;

void banyan_interrupt_set(banyan_interrupt_fn fn, void *context)
{
    atomic_store(&interrupt_context, context);
    atomic_store(&interrupt_fn, fn);
}

uint64_t interrupt_until(uint64_t until_ns)
{
    if (!atomic_load_explicit(&interrupt_fn, memory_order_relaxed))
        return until_ns;
    uint64_t next_ns = deadline_after(INTERRUPT_PERIOD_NS);
    return next_ns < until_ns ? next_ns : until_ns;
}

uint64_t interrupt_left(uint64_t left_ns)
{
    bool asks = atomic_load_explicit(&interrupt_fn, memory_order_relaxed);
    return asks && left_ns > INTERRUPT_PERIOD_NS ? INTERRUPT_PERIOD_NS : left_ns;
}

void interrupt_also(const atomic_bool *also)
{
    interrupt_other = also;
}

bool interrupt_requested(void)
{
    if (interrupt_other && atomic_load_explicit(interrupt_other, memory_order_relaxed)) {
        interrupts++;
        return true;
    }
    banyan_interrupt_fn fn = atomic_load_explicit(&interrupt_fn, memory_order_acquire);
    if (!fn)
        return false;
    uint64_t now = time_now_ns();
    if (now < interrupt_next_ns)
        return false;
    interrupt_next_ns = now + INTERRUPT_PERIOD_NS;
    bool ends = fn(atomic_load(&interrupt_context));
    interrupts += ends;
    return ends;
}

unsigned interrupt_count(void)
{
    return interrupts;
}
