#include "reshard/run/memory.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <xxhash.h>

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

#define CHUNK_BYTES 16384

/* Pack strided elements chunk by chunk, so that the sum does not depend on the strides. */
banyan_status checksum_view(const strided_view *view, uint64_t *sum)
{
    if (strided_view_is_dense(view)) {
        *sum = XXH3_64bits(view->data, view->elems * view->elem_bytes);
        return BANYAN_OK;
    }
    uint64_t chunk_elems = view->elem_bytes < CHUNK_BYTES ? CHUNK_BYTES / view->elem_bytes : 1;
    char *chunk = malloc(chunk_elems * view->elem_bytes);
    XXH3_state_t *state = XXH3_createState();
    banyan_status status = BANYAN_OK;
    if (!chunk || !state) {
        status = error_no_memory(CHUNK_BYTES, "a checksum");
        goto free_state;
    }
    XXH3_64bits_reset(state);
    for (uint64_t first = 0; first < view->elems; first += chunk_elems) {
        uint64_t left = view->elems - first, count = left < chunk_elems ? left : chunk_elems;
        strided_pack(chunk, view, first, count);
        XXH3_64bits_update(state, chunk, count * view->elem_bytes);
    }
    *sum = XXH3_64bits_digest(state);
free_state:
    XXH3_freeState(state);
    free(chunk);
    return status;
}
