/* The memory that runs take for staging, and its account. */
#ifndef RESHARD_RUN_MEMORY_H
#define RESHARD_RUN_MEMORY_H

#include <banyan/reshard.h>

/* One block that is dealt out from the front, wave after wave the same way: what is taken in the
 * same order has the same addresses, so that schedules stay good. Zeroed is empty. */
typedef struct run_memory {
    banyan_memory *memory;
    size_t bytes, used;
} run_memory;

/* Symmetric memory, so that peers reach it in one pass: collective. */
banyan_status run_memory_alloc(banyan_world *world, size_t bytes, run_memory *arena);
void run_memory_free(run_memory *arena);

/* What an amount takes of an arena. */
size_t run_memory_rounded(size_t bytes);
/* NULL, with the error set, when the arena is used up. */
void *run_memory_take(run_memory *arena, size_t bytes);
void run_memory_reset(run_memory *arena);

/* What all runs of this process take now, and the most it has been since `run_memory_restart`. */
void run_memory_count(int64_t bytes);
uint64_t run_memory_peak(void);
void run_memory_restart(void);

#endif
