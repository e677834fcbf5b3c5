/* The layout of a fused program (fuse.h) in device memory. */
#ifndef CUDA_EXECUTE_PACK_H
#define CUDA_EXECUTE_PACK_H

#include <stdbool.h>

#include <banyan/core.h>

#include "cuda/execute/kernel.h"

/* The targets of a program's steps: a plan's channel ends, and its semaphores. */
typedef struct pack_ends {
    const kernel_end *channels;   /* indexed as in steps */
    const kernel_end *semaphores; /* indexed by number; only `incoming` and `outgoing` are set */
} pack_ends;

/* The size of a packed program, and its parts. Offsets are bytes from its start. */
typedef struct pack_layout {
    uint64_t bytes;
    uint32_t section_bytes;
    uint64_t steps, ends, words, spans;
} pack_layout;

/* Sections have at most `section_most` bytes (KERNEL_SECTION_MOST, or less). */
void pack_plan(const engine_program *program, uint32_t section_most, pack_layout *layout);

/* Write the program into `layout->bytes` bytes at `to`, for a copy to `address` on the device. */
void pack_write(const engine_program *program, const pack_ends *ends, const pack_layout *layout,
                uint64_t address, char *to);

/* Return the smallest kernel that can run it. `staged`: as stages, without its puts. */
kernel_kind pack_kind(const engine_program *program, bool staged);

#endif
