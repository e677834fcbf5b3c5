/* Reaching a peer's ordinary memory with its help: threads of the owner's copy between that memory
 * and the requesters' slots. */
#ifndef MEMORY_STAGING_STAGING_H
#define MEMORY_STAGING_STAGING_H

#include "memory/staging/mailbox.h"

/* The owner's side. */
typedef struct staging_service staging_service;

/* Local. `mailboxes` is the symmetric block of `mailbox`s. */
banyan_status staging_service_start(memory_space *space, const banyan_memory *mailboxes,
                                    staging_service **service);
void staging_service_stop(staging_service *service);
uint64_t staging_service_cpu_ns(const staging_service *service);

/* The requester's side: one a rank, one transfer at a time. */
typedef struct staging_requester {
    memory_space *space;
    const banyan_memory *mailboxes;
    uint32_t spins;
    size_t slot_bytes; /* of a slot that are used, so that all slots fit a core's cache */
    size_t refill;     /* slots are filled again this many at once */
    bool share_a_core; /* have the owner's thread work on this one's processor */
    bool stuck;        /* a transfer was given up: owners may still be working on its slots */
} staging_requester;

staging_requester staging_requester_of(memory_space *space, const banyan_memory *mailboxes);

typedef struct staging_transfer {
    const banyan_memory_handle *handle;
    const banyan_iovec *pieces;
    size_t count;
    bool write;      /* into the owner's memory */
    bool past_cache; /* it is large: keep the destination out of the caches */
} staging_transfer;

/* All pieces are in place when it returns BANYAN_OK. The owner refuses (INVALID) what it has not
 * registered. */
banyan_status staging_run(staging_requester *requester, const staging_transfer *transfer);

#endif
