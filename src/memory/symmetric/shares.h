/* The allocations behind this rank's registered GPU memory, as described to peers. */
#ifndef MEMORY_SYMMETRIC_SHARES_H
#define MEMORY_SYMMETRIC_SHARES_H

#include "memory/device.h"
#include "memory/space.h"

/* Valid as long as the registration that it was created for: until that ends, its allocations
 * cannot have been freed and replaced at the same address. */
typedef struct memory_share {
    uint64_t id; /* never reused, so a peer's mapping under an id stays correct */
    uint64_t founder;
    device_share what;
    char reason[160]; /* why nobody can share it */
} memory_share;

/* Get the share that contains the whole handle of kind DEVICE. INVALID when it is not registered.
 * The share stays valid until a registration ends; a range that nobody can share, until the next
 * call. */
banyan_status memory_share_of(memory_space *space, const banyan_memory_handle *handle,
                              const memory_share **share);
/* Find a share by id; NULL when it does not exist (any more). */
const memory_share *memory_share_find(const memory_space *space, uint64_t id);

/* Remove the shares that were created for a registration that ends. */
void memory_shares_forget(memory_space *space, uint64_t founder);
void memory_shares_free(memory_space *space);

#endif
