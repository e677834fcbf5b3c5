/* Runs a kernel's threads as fibers of one host thread. */
#ifndef EMULATION_FIBERS_H
#define EMULATION_FIBERS_H

#include <stddef.h>
#include <stdint.h>

typedef struct fiber_index {
    unsigned x, y, z;
} fiber_index;

/* Every thread of the launch runs body(argument) on its own stack; returns when all have ended.
 * When one waits, `seed` determines the next; 0: they take turns in order. */
void fibers_run(fiber_index grid, fiber_index block, size_t shared_bytes,
                void (*body)(const void *argument), const void *argument, uint64_t seed);

#endif
