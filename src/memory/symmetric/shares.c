#include "memory/symmetric/symmetric.h"

#include <inttypes.h>
#include <string.h>

struct memory_shares {
    ARRAY(memory_share *) all; /* ascending by id */
    uint64_t next_id;
    memory_share nobodys; /* the last requested range that nobody can share */
};

static bool shares_holds(const memory_share *share, const banyan_memory_handle *handle)
{
    const device_share *what = &share->what;
    return handle->address >= what->base && handle->bytes <= what->bytes &&
           handle->address - what->base <= what->bytes - handle->bytes;
}

static banyan_status shares_describe(memory_space *space, const banyan_memory_handle *handle,
                                     memory_share *share)
{
    const memory_device_ops *ops;
    RETURN_IF_FAILED(memory_device_find(kDLCUDA, &ops));
    banyan_status status = ops->share((const void *)(uintptr_t)handle->address, handle->bytes,
                                      &share->what, share->reason, sizeof share->reason);
    if (status != BANYAN_OK)
        return error_set(status, "rank %d cannot share %" PRIu64 " bytes at %#" PRIx64 ": %s",
                         space->rank, handle->bytes, handle->address, banyan_last_error());
    return BANYAN_OK;
}

static banyan_status shares_add(memory_space *space, const banyan_memory_handle *handle,
                                const memory_share **share)
{
    struct memory_shares *shares = space->shares;
    memory_share *made = calloc(1, sizeof *made);
    if (!made || !array_reserve(&shares->all, 1)) {
        free(made);
        return error_no_memory(sizeof *made, "the shares of a GPU's memory");
    }
    banyan_status status = shares_describe(space, handle, made);
    if (status != BANYAN_OK) {
        free(made);
        return status;
    }
    made->id = ++shares->next_id;
    made->founder = handle->id;
    if (made->what.sharing == DEVICE_SHARED_BY_NOBODY) {
        shares->nobodys = *made;
        free(made);
        *share = &shares->nobodys;
        return BANYAN_OK;
    }
    shares->all.data[shares->all.count++] = made;
    *share = made;
    return BANYAN_OK;
}

banyan_status memory_share_of(memory_space *space, const banyan_memory_handle *handle,
                              const memory_share **share)
{
    pthread_rwlock_rdlock(&space->lock);
    bool known = handle->kind == BANYAN_MEMORY_DEVICE && handle->rank == space->rank &&
                 registration_covers(space, handle);
    pthread_rwlock_unlock(&space->lock);
    if (!known)
        return error_set(BANYAN_ERR_INVALID,
                         "rank %d has not registered %" PRIu64 " bytes of a GPU at %#" PRIx64
                         " under the id %#" PRIx64,
                         space->rank, handle->bytes, handle->address, handle->id);
    if (!space->shares && !(space->shares = calloc(1, sizeof *space->shares)))
        return error_no_memory(sizeof *space->shares, "the shares of a GPU's memory");
    for (size_t i = space->shares->all.count; i > 0; i--) {
        if (shares_holds(space->shares->all.data[i - 1], handle)) {
            *share = space->shares->all.data[i - 1];
            return BANYAN_OK;
        }
    }
    return shares_add(space, handle, share);
}

const memory_share *memory_share_find(const memory_space *space, uint64_t id)
{
    const struct memory_shares *shares = space->shares;
    size_t low = 0, high = shares ? shares->all.count : 0;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (shares->all.data[middle]->id < id)
            low = middle + 1;
        else
            high = middle;
    }
    return shares && low < shares->all.count && shares->all.data[low]->id == id
               ? shares->all.data[low]
               : NULL;
}

void memory_shares_forget(memory_space *space, uint64_t founder)
{
    struct memory_shares *shares = space->shares;
    size_t kept = 0;
    for (size_t i = 0; shares && i < shares->all.count; i++) {
        if (shares->all.data[i]->founder == founder)
            free(shares->all.data[i]);
        else
            shares->all.data[kept++] = shares->all.data[i];
    }
    if (shares)
        shares->all.count = kept;
}

void memory_shares_free(memory_space *space)
{
    struct memory_shares *shares = space->shares;
    for (size_t i = 0; shares && i < shares->all.count; i++)
        free(shares->all.data[i]);
    if (shares)
        array_free(&shares->all);
    free(shares);
    space->shares = NULL;
}
