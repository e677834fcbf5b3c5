/* Reach a peer's ordinary memory with the owner's help: the owner's threads copy between that
 * memory and the requesters' slots. */
#ifndef MEMORY_STAGING_STAGING_H
#define MEMORY_STAGING_STAGING_H

#include "memory/staging/mailbox.h"

/* The owner's side. */
typedef struct staging_service staging_service;

/* Start the service. Local. `mailboxes` is the symmetric block of `mailbox`s. */
banyan_status staging_service_start(memory_space *space, const banyan_memory *mailboxes,
                                    staging_service **service);
void staging_service_stop(staging_service *service);
uint64_t staging_service_cpu_ns(const staging_service *service);

/* The requester's side: one per rank, one transfer at a time. */
typedef struct staging_requester {
    memory_space *space;
    const banyan_memory *mailboxes;
    uint32_t spins;
    size_t slot_bytes; /* bytes used per slot, so that all slots fit a core's cache */
    size_t refill;     /* number of slots that are refilled at once */
    bool share_a_core; /* the owner's thread works on this thread's processor */
    bool stuck;        /* a transfer was abandoned: owners may still use its slots */
} staging_requester;

staging_requester staging_requester_of(memory_space *space, const banyan_memory *mailboxes);

typedef struct staging_transfer {
    const banyan_memory_handle *handle;
    const banyan_iovec *pieces;
    size_t count;
    bool write;      /* into the owner's memory */
    bool past_cache; /* a large transfer: keep the destination out of the caches */
} staging_transfer;

/* Run a transfer; all pieces are in place when it returns BANYAN_OK. INVALID when the owner has not
 * registered the memory. */
banyan_status staging_run(staging_requester *requester, const staging_transfer *transfer);

#endif
