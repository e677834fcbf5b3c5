#include "mixed/memory/staging.h"

#include <stdlib.h>

#include "core/error.h"
#include "world/control.h"

static void memory_staging_drop(const banyan_mixed *mixed, pages *made)
{
    if (mixed_is_host(mixed))
        free(made->address);
    else
        mixed->device_memory->release(made);
}

static void drop_last(banyan_mixed *mixed)
{
    memory_staging_drop(mixed, &mixed->staging.data[--mixed->staging.count]);
}

static banyan_status memory_staging_make(const banyan_mixed *mixed, uint64_t bytes, pages *made)
{
    device_handles handles;
    if (mixed_is_host(mixed)) {
        *made = (pages){malloc((size_t)bytes), (size_t)bytes};
        return made->address ? BANYAN_OK
                             : error_no_memory((size_t)bytes, "staging of mixed collectives");
    }
    RETURN_IF_FAILED(mixed->device_memory->create(mixed->options.device.device_id, (size_t)bytes,
                                                  &handles, made));
    device_handles_close(&handles);
    return BANYAN_OK;
}

/* Grow on all ranks or on none, so that all grow together in later calls, too. Collective. */
static banyan_status memory_staging_grow(banyan_mixed *mixed, uint64_t bytes)
{
    pages made;
    bool is_made = false;
    banyan_status status = BANYAN_ERR_NO_MEMORY;
    if (array_reserve(&mixed->staging, 1)) {
        status = memory_staging_make(mixed, bytes, &made);
        is_made = status == BANYAN_OK;
    }
    status = control_agree(mixed->setup.worlds[MIXED_WORLD], status);
    if (status != BANYAN_OK) {
        if (is_made)
            memory_staging_drop(mixed, &made);
        return status;
    }
    if (mixed_is_host(mixed) && mixed->staging.count > 0)
        drop_last(mixed); /* no graph uses it */
    mixed->staging.data[mixed->staging.count++] = made;
    return BANYAN_OK;
}

/* Grow to at least twice the size, so that the total kept for graphs never exceeds the last
 * buffer. */
banyan_status staging_take(banyan_mixed *mixed, uint64_t bytes, void **staging)
{
    size_t count = mixed->staging.count;
    uint64_t last = count > 0 ? mixed->staging.data[count - 1].mapped_bytes : 0;
    if (bytes > last)
        RETURN_IF_FAILED(memory_staging_grow(mixed, bytes > 2 * last ? bytes : 2 * last));
    *staging = mixed->staging.data[mixed->staging.count - 1].address;
    return BANYAN_OK;
}

void staging_suspend(const banyan_mixed *mixed)
{
    for (size_t i = 0; i < mixed->staging.count; i++)
        mixed->device_memory->suspend(&mixed->staging.data[i]);
}

banyan_status staging_resume(const banyan_mixed *mixed)
{
    for (size_t i = 0; i < mixed->staging.count; i++) {
        device_handles handles;
        banyan_status status = mixed->device_memory->recreate(mixed->options.device.device_id,
                                                              &mixed->staging.data[i], &handles);
        if (status != BANYAN_OK) {
            staging_suspend(mixed);
            return error_set(status,
                             "rank %d could not allocate its staging of %zu bytes again: %s",
                             mixed->rank, mixed->staging.data[i].mapped_bytes, banyan_last_error());
        }
        device_handles_close(&handles);
    }
    return BANYAN_OK;
}

void staging_free(banyan_mixed *mixed)
{
    while (mixed->staging.count > 0)
        drop_last(mixed);
    array_free(&mixed->staging);
}
