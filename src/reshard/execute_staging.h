/* The memory that runs take for staging, and its account. */
#ifndef RESHARD_EXECUTE_STAGING_H
#define RESHARD_EXECUTE_STAGING_H

#include <banyan/reshard.h>

/* One block that is dealt out from the front, wave after wave the same way: what is taken in the
 * same order has the same addresses, so that schedules stay good. Zeroed is empty. */
typedef struct staging {
    banyan_memory *memory;
    size_t bytes, used;
} staging;

/* Symmetric memory, so that peers reach it in one pass: collective. */
banyan_status staging_alloc(banyan_world *world, size_t bytes, staging *arena);
void staging_free(staging *arena);

/* What an amount takes of an arena. */
size_t staging_rounded(size_t bytes);
/* NULL, with the error set, when the arena is used up. */
void *staging_take(staging *arena, size_t bytes);
void staging_reset(staging *arena);

/* What all runs of this process take now, and the most it has been since `staging_restart`. */
void staging_count(int64_t bytes);
uint64_t staging_peak(void);
void staging_restart(void);

#endif
