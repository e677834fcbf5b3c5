/* The allocations that this rank's registered GPU memory lies in, as peers are told of them. */
#ifndef MEMORY_SYMMETRIC_SHARES_H
#define MEMORY_SYMMETRIC_SHARES_H

#include "memory/device.h"
#include "memory/space.h"

/* Good for as long as the registration that it was described for: until then its allocations cannot
 * have been freed and made anew at the same address. */
typedef struct memory_share {
    uint64_t id; /* never used again, so that what peers have mapped under it is this */
    uint64_t founder;
    device_share what;
    char reason[160]; /* why nobody can share it */
} memory_share;

/* What the handle of kind DEVICE lies in, whole. INVALID when it is not registered. The share stays
 * where it is until a registration goes; one that nobody can share, until the next call. */
banyan_status memory_share_of(memory_space *space, const banyan_memory_handle *handle,
                              const memory_share **share);
/* NULL: there is none (any more). */
const memory_share *memory_share_find(const memory_space *space, uint64_t id);

/* A registration goes, and so do the shares that it founded. */
void memory_shares_forget(memory_space *space, uint64_t founder);
void memory_shares_free(memory_space *space);

#endif
