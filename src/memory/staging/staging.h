/* Reach a peer's ordinary memory with the owner's help: the owner's threads copy between that
 * memory and the requesters' slots. */
#ifndef MEMORY_STAGING_STAGING_H
#define MEMORY_STAGING_STAGING_H

#include <sched.h>

#include "memory/space.h"
#include "memory/staging/wake_up.h"

#define MAILBOX_SLOTS 4
#define MAILBOX_SLOT_BYTES ((size_t)256 << 10)
#define MAILBOX_SLOT_PIECES 1024
#define MAILBOX_RANKS_MAX 4096
#define MAILBOX_QUEUES 4

typedef enum slot_state {
    SLOT_FREE,   /* the requester's */
    SLOT_POSTED, /* the owner's */
    SLOT_DONE    /* the requester's again, with a verdict */
} slot_state;

typedef enum slot_verdict {
    SLOT_GRANTED = 1,
    SLOT_NOT_REGISTERED,
    SLOT_OUT_OF_RANGE,
    SLOT_MALFORMED
} slot_verdict;

typedef struct slot_piece {
    uint64_t offset, bytes;
} slot_piece;

/* One request: pieces of the owner's memory; their bytes are consecutive in `data`. */
typedef struct mailbox_slot {
    _Alignas(64) _Atomic uint32_t state;
    uint32_t owner;   /* local rank */
    uint32_t write;   /* from the slot into the owner's memory */
    uint32_t verdict; /* slot_verdict */
    uint32_t past_cache;
    uint32_t piece_count;
    int32_t processor; /* where its data is cached, so serve it there; -1: anywhere */
    banyan_memory_handle handle;
    slot_piece pieces[MAILBOX_SLOT_PIECES];
    _Alignas(4096) char data[MAILBOX_SLOT_BYTES];
} mailbox_slot;

/* The queue of one of an owner's threads. Requesters of one owner are served in parallel, each on
 * its own processor. */
typedef struct mailbox_queue {
    wake_up requested;                                                /* rung by requesters */
    _Alignas(64) _Atomic uint64_t requesters[MAILBOX_RANKS_MAX / 64]; /* one bit per local rank */
} mailbox_queue;

/* A rank's part. The slots belong to the requesting rank, which has one operation at a time. */
typedef struct mailbox {
    mailbox_queue queues[MAILBOX_QUEUES]; /* of this rank as an owner */
    wake_up answered;                     /* rung by owners, for this rank as a requester */
    cpu_set_t processors; /* where the rank may run; empty when there are too many to list */
    _Alignas(4096) registration_entry registrations[REGISTRATIONS_MAX];
    mailbox_slot slots[MAILBOX_SLOTS];
} mailbox;

/* Return the queue that a requester uses, by its local rank. */
static inline mailbox_queue *mailbox_queue_for(mailbox *owner, int requester)
{
    return &owner->queues[requester % MAILBOX_QUEUES];
}

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
