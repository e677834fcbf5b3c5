/* Reaching a peer's ordinary memory with its help: a thread of the owner's copies between that
 * memory and the requester's slots. */
#ifndef MEMORY_STAGING_H
#define MEMORY_STAGING_H

#include "memory/board.h"

/* The owner's side. */
typedef struct staging_service staging_service;

/* Local. `boards` is the symmetric block of `board`s. */
banyan_status staging_service_start(memory_space *space, const banyan_memory *boards,
                                    staging_service **service);
void staging_service_stop(staging_service *service);

/* The requester's side: one a rank, one transfer at a time. */
typedef struct staging_requester {
    memory_space *space;
    const banyan_memory *boards;
    uint32_t spins;
    bool stuck; /* a transfer was given up: owners may still be working on its slots */
} staging_requester;

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
