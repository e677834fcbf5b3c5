/* What one rank knows of a world's memory: its symmetric buffers and its registrations. */
#ifndef MEMORY_SPACE_H
#define MEMORY_SPACE_H

#include <pthread.h>
#include <stdatomic.h>

#include <banyan/memory.h>

#include "core/containers/array.h"
#include "memory/symmetric/pages.h"
#include "memory/user/spans.h"

/* A rank's part of a symmetric buffer. */
typedef struct memory_part {
    pages mapped;
    size_t bytes;           /* as its owner asked for */
    uint64_t owner_address; /* where the owner has it mapped */
} memory_part;

struct banyan_memory {
    struct memory_space *space;          /* NULL: suspended, and of no world (suspend.h) */
    const struct memory_device_ops *ops; /* NULL: on the host */
    DLDevice device;                     /* where this rank's part lies */
    uint64_t id;
    memory_part *parts; /* one a local rank */
    int part_count, own_part;
    bool is_suspended; /* nothing is mapped where the parts were */
    /* Memory that its owners have allocated: how it is mapped, and this rank's part (kind 0: it has
     * none, or the buffer is of our own making). */
    struct memory_attachments *attached;
    banyan_memory_handle adopted;
    struct memory_multicast *multicasts; /* what it has of them; see multicast.h */
};

/* A registration, as its owner shows it to its peers. The id is 0 while it is empty or changing. */
typedef struct registration_entry {
    _Atomic uint64_t id, address, bytes;
    uint64_t unused; /* two entries share a cache line */
} registration_entry;

#define REGISTRATIONS_MAX ((size_t)1 << 20)

typedef struct registration {
    uint64_t id; /* generation << 32 | index + 1 */
    uintptr_t address;
    size_t bytes;
    banyan_memory_kind kind; /* USER or DEVICE */
    bool live;
    size_t next_free; /* index + 1; 0 at the end */
} registration;

typedef struct memory_space {
    banyan_world *world;
    int rank, local_rank, local_size;
    int *local_ranks; /* ranks of this node, ascending */

    ARRAY(banyan_memory *) buffers; /* ascending by id */
    uint64_t next_buffer_id;
    spans buffer_spans; /* of this rank's own parts */

    /* The lock is held, shared, by whoever uses a registration on behalf of a peer, so that memory
     * is left alone once it is unregistered. */
    pthread_rwlock_t lock;
    ARRAY(registration) registrations;
    size_t first_free; /* index + 1; 0 when all are live */
    spans registration_spans;
    registration_entry *shown; /* to peers; NULL until somebody needs it */

    struct memory_shares *shares;    /* of registered memory of GPUs; NULL until somebody asks */
    struct attached_share *attached; /* what peers share and is mapped here */
    struct user_memory *user;        /* NULL until somebody needs it */
    int processors; /* that the node's ranks may run on, together; 0: not known yet */
} memory_space;

/* The world's, made when it is first asked for. */
banyan_status memory_space_of(banyan_world *world, memory_space **space);

/* The place of `rank` among the node's ranks; -1 for another node's. */
int memory_space_local(const memory_space *space, int rank);

/* Must the node's ranks share processors, when each has so many threads at work? */
static inline bool memory_space_is_crowded(const memory_space *space, int threads)
{
    return space->processors > 0 && space->local_size * threads > space->processors;
}

/* Like banyan_memory_alloc. `sparse`: most of it is never touched. */
banyan_status memory_alloc(banyan_world *world, size_t bytes, bool sparse, banyan_memory **memory);

/* Unmap, and free what describes it; NULL is ignored. */
void memory_release(banyan_memory *memory);

/* The device had no room for `bytes`: add to the error how much there is. */
banyan_status memory_explain_device(const banyan_memory *memory, size_t bytes,
                                    banyan_status status);

/* Have a world know a buffer that has its id, or forget it. There is room in `buffers`; NO_MEMORY.
 */
banyan_status memory_enter_space(memory_space *space, banyan_memory *memory);
void memory_leave_space(banyan_memory *memory);

/* A rank's part by its place among the node's ranks. */
static inline char *memory_part_of(const banyan_memory *memory, int local)
{
    return memory->parts[local].mapped.address;
}

/* Symmetric memory that the handle names, as mapped here. NOT_FOUND, INVALID or UNSUPPORTED. */
banyan_status memory_resolve(memory_space *space, const banyan_memory_handle *handle,
                             char **address);

/* Let peers see the registrations in `shown` from now on. */
void registrations_show(memory_space *space, registration_entry *shown);

/* At the owner, with the lock held: is what the handle names registered, whole? */
bool registration_covers(const memory_space *space, const banyan_memory_handle *handle);

/* At a peer, the same from what the owner shows. */
bool registration_shown_covers(registration_entry *shown, const banyan_memory_handle *handle);

/* The error of this rank, which asked for what the handle names in vain. */
banyan_status registration_missing(const memory_space *space, const banyan_memory_handle *handle);

void registrations_free(memory_space *space);

#endif
