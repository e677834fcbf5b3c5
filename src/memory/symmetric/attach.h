/* Mapping what peers have registered of their GPUs' memory. */
#ifndef MEMORY_SYMMETRIC_ATTACH_H
#define MEMORY_SYMMETRIC_ATTACH_H

#include "memory/space.h"

/* What is mapped for one purpose. An allocation of a peer's that serves several is mapped once. */
typedef struct memory_attachments memory_attachments;

typedef struct memory_wanted {
    banyan_memory_handle handle; /* of kind DEVICE, as its owner has told; any part of it */
    /* Out: where handle.address is mapped here; NULL for what cannot be mapped and so is staged. */
    char *address;
} memory_wanted;

/* Map all that is wanted for use by this rank's device (its number): cudaMalloc's memory, mapped
 * virtual memory that was made to be shared, and any memory of a rank that is a thread of this
 * process, all at once. Own memory is where it is. Ranks that want nothing take part too. The
 * owners keep their memory registered until all have freed what they attached. Collective. INVALID:
 * a handle that is not registered. */
banyan_status memory_attach(banyan_world *world, int device, memory_wanted *wanted, size_t count,
                            memory_attachments **attached);

/* Can peers map what this rank has registered? `*reason` is NULL when CUDA lets them, else why not,
 * until the next call. Local. */
banyan_status memory_check_attachable(banyan_world *world, const banyan_memory_handle *handle,
                                      const char **reason);

/* Why something has no address, of the first such; "" when all is mapped. */
const char *memory_attachments_reason(const memory_attachments *attached);

/* Local; before the world is closed. What nobody else uses is unmapped. NULL is ignored. */
void memory_attachments_free(memory_attachments *attached);

/* Whatever is left when a world's memory goes. */
void attached_shares_free(memory_space *space);

#endif
