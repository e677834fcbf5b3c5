/* The staging memory of runs, and its accounting. */
#ifndef RESHARD_RUN_MEMORY_H
#define RESHARD_RUN_MEMORY_H

#include <banyan/reshard.h>

#include "copy/strided/strided.h"

/* One block that is handed out from the front, identically in every wave: takes in the same order
 * get the same addresses, so that schedules stay valid. Zeroed is empty. */
typedef struct run_memory {
    banyan_memory *memory;
    size_t bytes, used;
} run_memory;

/* Allocate symmetric memory, so that peers reach it in one pass. Collective. */
banyan_status run_memory_alloc(banyan_world *world, size_t bytes, run_memory *arena);
void run_memory_free(run_memory *arena);

/* Return the bytes of an arena that a take of `bytes` uses. */
size_t run_memory_rounded(size_t bytes);
/* Return NULL, with the error set, when the arena is used up. */
void *run_memory_take(run_memory *arena, size_t bytes);
void run_memory_reset(run_memory *arena);

/* Account for memory that runs of this process use now, and for its peak since
 * `run_memory_restart`. */
void run_memory_count(int64_t bytes);
uint64_t run_memory_peak(void);
void run_memory_restart(void);

/* Compute the 64-bit XXH3 of the elements in row-major order, wherever they lie. NO_MEMORY is the
 * only error. */
banyan_status checksum_view(const strided_view *view, uint64_t *sum);

#endif
