/* The program's function that may end waits (banyan_interrupt_set). */
#ifndef CORE_INTERRUPT_H
#define CORE_INTERRUPT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Reason of an interrupted wait, for messages. */
#define INTERRUPT_TEXT "the program interrupted the wait"

/* Shorten a wait, so that it asks the function in time: one that ends at a time, and one that lasts
 * so long. */
uint64_t interrupt_until(uint64_t until_ns);
uint64_t interrupt_left(uint64_t left_ns);

/* True if the function ends the wait. It is asked at most every 50 ms by a thread, so callers may
 * call this as often as they look. Hold no lock. */
bool interrupt_requested(void);

/* Return how many times the function has ended a wait of the calling thread. */
unsigned interrupt_count(void);

/* Let the waits of the calling thread end, too, when `*also` is true. */
void interrupt_also(const atomic_bool *also);

#endif
