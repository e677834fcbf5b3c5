/* Map GPU memory that peers have registered. */
#ifndef MEMORY_SYMMETRIC_ATTACH_H
#define MEMORY_SYMMETRIC_ATTACH_H

#include "memory/space.h"

/* The mappings for one purpose. A peer's allocation that serves several purposes is mapped once. */
typedef struct memory_attachments memory_attachments;

typedef struct memory_wanted {
    banyan_memory_handle handle; /* of kind DEVICE, as received from its owner; any part of it */
    /* Out: the mapped address of handle.address; NULL if it cannot be mapped and is therefore
     * staged. */
    char *address;
} memory_wanted;

/* Map all wanted ranges for use by this rank's device (its number), at once. Mappable are
 * cudaMalloc's memory, mapped virtual memory that was created for sharing, and any memory of a rank
 * that is a thread of this process. Own memory keeps its address. Ranks that want nothing take part
 * too. Owners keep their memory registered until all ranks have freed their attachments.
 * Collective. INVALID: a handle is not registered. */
banyan_status memory_attach(banyan_world *world, int device, memory_wanted *wanted, size_t count,
                            memory_attachments **attached);

/* Check whether peers can map what this rank has registered. `*reason` is NULL if CUDA allows it;
 * otherwise it is the reason, valid until the next call. Local. */
banyan_status memory_check_attachable(banyan_world *world, const banyan_memory_handle *handle,
                                      const char **reason);

/* Return why the first unmapped range has no address; "" when all are mapped. */
const char *memory_attachments_reason(const memory_attachments *attached);

/* Free attachments, before the world is closed; unmap memory without other users. Local. NULL is
 * ignored. */
void memory_attachments_free(memory_attachments *attached);

/* Free all remaining shares when a world's memory ends. */
void attached_shares_free(memory_space *space);

#endif
