/* A fused program (fuse.h) as it lies in the device's memory. */
#ifndef CUDA_EXECUTE_PACK_H
#define CUDA_EXECUTE_PACK_H

#include <stdbool.h>

#include <banyan/core.h>

#include "cuda/execute/kernel.h"

/* What the ends of a program's steps become: a plan's channel ends, and its semaphores. */
typedef struct pack_ends {
    const kernel_end *channels;   /* by the index that steps have */
    const kernel_end *semaphores; /* by number; `incoming` and `outgoing` alone */
} pack_ends;

/* How large a packed program is, and its parts. Offsets are bytes from its start. */
typedef struct pack_layout {
    uint64_t bytes;
    uint32_t section_bytes;
    uint64_t steps, ends, words, spans;
} pack_layout;

/* Sections have no more than `section_most` bytes (KERNEL_SECTION_MOST, or less). */
void pack_plan(const engine_program *program, uint32_t section_most, pack_layout *layout);

/* Write the program into `layout->bytes` bytes at `to`, to be copied to `address` on the device. */
void pack_write(const engine_program *program, const pack_ends *ends, const pack_layout *layout,
                uint64_t address, char *to);

/* The smallest kernel that may run it. `staged`: as stages, without its puts. */
kernel_kind pack_kind(const engine_program *program, bool staged);

#endif
