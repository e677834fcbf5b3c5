#include "reshard/run/memory.h"

#include <stdatomic.h>

#include "core/error.h"

#define ALIGNMENT 64

static _Atomic int64_t live_bytes, peak_bytes;

void run_memory_count(int64_t bytes)
{
    int64_t live = atomic_fetch_add(&live_bytes, bytes) + bytes;
    int64_t peak = atomic_load(&peak_bytes);
    while (live > peak && !atomic_compare_exchange_weak(&peak_bytes, &peak, live))
        continue;
}

uint64_t run_memory_peak(void)
{
    return (uint64_t)atomic_load(&peak_bytes);
}

void run_memory_restart(void)
{
    atomic_store(&peak_bytes, atomic_load(&live_bytes));
}

banyan_status run_memory_alloc(banyan_world *world, size_t bytes, run_memory *arena)
{
    RETURN_IF_FAILED(banyan_memory_alloc(world, bytes, &arena->memory));
    arena->bytes = bytes;
    arena->used = 0;
    run_memory_count((int64_t)bytes);
    return BANYAN_OK;
}

void run_memory_free(run_memory *arena)
{
    banyan_memory_free(arena->memory);
    run_memory_count(-(int64_t)arena->bytes);
    *arena = (run_memory){0};
}

size_t run_memory_rounded(size_t bytes)
{
    return bytes / ALIGNMENT * ALIGNMENT + (bytes % ALIGNMENT != 0) * ALIGNMENT;
}

void *run_memory_take(run_memory *arena, size_t bytes)
{
    size_t rounded = run_memory_rounded(bytes);
    if (rounded < bytes || rounded > arena->bytes - arena->used) {
        error_set(BANYAN_ERR_NO_MEMORY,
                  "a run takes %zu bytes of staging, of which %zu are left of %zu: more than when "
                  "it was prepared",
                  bytes, arena->bytes - arena->used, arena->bytes);
        return NULL;
    }
    char *taken = (char *)banyan_memory_local(arena->memory) + arena->used;
    arena->used += rounded;
    return taken;
}

void run_memory_reset(run_memory *arena)
{
    arena->used = 0;
}
