/* Symmetric memory on devices: mapping what peers have registered, multicast addresses, and
 * releasing physical memory for a while. */
#ifndef MEMORY_SYMMETRIC_SYMMETRIC_H
#define MEMORY_SYMMETRIC_SYMMETRIC_H

#include "memory/device.h"
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

/* An allocation behind this rank's registered GPU memory, as described to peers. Valid as long as
 * the registration that it was created for: until that ends, its allocations cannot have been freed
 * and replaced at the same address. */
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

/* A peer's share that is mapped here. */
typedef struct attached_share {
    struct attached_share *next;
    int owner;   /* rank */
    uint64_t id; /* the owner's id of the share */
    int device;  /* the local device that uses it */
    size_t uses; /* attachments */
    device_share what;
    device_attachment where;
    char reason[256]; /* why it could not be mapped; "" if it was */
} attached_share;

/* Map shares by parts, in rounds: all of `missing` that have no reason yet. Collective; ranks that
 * miss nothing take part. A share that cannot be mapped gets its reason. Errors are those of the
 * control plane or of memory. */
banyan_status attached_shares_fetch(memory_space *space, attached_share **missing, size_t count);

/* Multicast addresses of symmetric buffers on devices: one address for corresponding places in the
 * parts of several ranks, for multimem instructions only. Opt-in: BANYAN_MULTICAST=1.
 *
 * Agree whether the world's ranks use multicast on their devices. They do if all have
 * BANYAN_MULTICAST=1, a device each, and the required support. Otherwise `why_not` (NULL: none is
 * requested) names the missing feature, as part of a message. If only some ranks qualify, an info
 * log line reports it. Errors are those of the world. Collective. */
banyan_status memory_multicast_agree(banyan_world *world, DLDevice device, bool *usable,
                                     char *why_not, size_t why_not_bytes);

/* Get an address for the first `*bytes` of a buffer in the parts of `ranks`, which are ascending
 * and include this rank. Every rank of the world names its own group, or none (`count` 0,
 * `*address` NULL). `*bytes` is the size of the smallest part, in whole units of the device. The
 * address is created once per group and stays until the buffer is freed. Collective over the world,
 * after memory_multicast_agree has agreed. An error of one rank is the error of all ranks, and
 * leaves nothing behind: UNSUPPORTED for adopted memory, MISMATCH when ranks name different groups.
 */
banyan_status memory_multicast_make(banyan_memory *memory, const int *ranks, int count,
                                    char **address, size_t *bytes);

/* Suspend the addresses before a buffer's memory is released, local; resume them, at
 * unchanged addresses, once the memory is back, collective. After an error they can be suspended
 * again. */
void memory_multicasts_suspend(banyan_memory *memory);
banyan_status memory_multicasts_resume(banyan_memory *memory);

/* Local. */
void memory_multicasts_free(banyan_memory *memory);

/* Release the physical memory of device buffers for a while. Addresses stay reserved, at the owner
 * and at its peers, so that kernels in graphs, above all, need no update.
 *
 * Release this rank's part, and its mappings of peers' parts, of all buffers of this world that
 * Banyan allocated on devices. Suspended buffers stay suspended. Local: no rank may use the buffers
 * any more when it is called, and the memory is free when all ranks have called it. */
void memory_suspend_all(banyan_world *world);

/* Map zeroed memory at the old addresses again. Collective. When one rank fails, all get its error,
 * all buffers stay suspended, and you can try again. */
banyan_status memory_resume_all(banyan_world *world);

/* Take a suspended buffer out of its world, which it then outlives, and add it to another world.
 * That world's node must have as many ranks, with this rank at the same index. All ranks do so in
 * the same order. Between the calls the buffer can only be freed. Local. On INVALID or NO_MEMORY it
 * is still in no world. */
void memory_leave(banyan_memory *memory);
banyan_status memory_join(banyan_world *world, banyan_memory *memory);

#endif
