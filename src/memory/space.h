/* The state of a world's memory at one rank: its symmetric buffers and its registrations. */
#ifndef MEMORY_SPACE_H
#define MEMORY_SPACE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <banyan/memory.h>

#include "core/containers.h"
#include "memory/symmetric/pages.h"

/* A treap ordered by (start, id); each node stores the furthest end below it. */
typedef struct span {
    uintptr_t start, end; /* end is one past the last byte */
    uint64_t id;
    uintptr_t furthest_end;
    uint64_t priority;
    struct span *left, *right;
} span;

/* Possibly overlapping address ranges of this process. A zeroed set is empty. */
typedef struct spans {
    span *root;
    uint64_t random;
} spans;

/* Add a range. False, with the error set, when out of memory. */
bool spans_add(spans *set, uintptr_t start, uintptr_t end, uint64_t id);
void spans_remove(spans *set, uintptr_t start, uint64_t id);

/* Return a span that contains all of [start, end); NULL when none does. O(log n). */
const span *spans_find(const spans *set, uintptr_t start, uintptr_t end);
void spans_free(spans *set);

/* A rank's part of a symmetric buffer. */
typedef struct memory_part {
    pages mapped;
    size_t bytes;           /* as its owner requested */
    uint64_t owner_address; /* where the owner has it mapped */
} memory_part;

struct banyan_memory {
    struct memory_space *space;          /* NULL: suspended, and in no world (memory_leave) */
    const struct memory_device_ops *ops; /* NULL: on the host */
    DLDevice device;                     /* where this rank's part lies */
    uint64_t id;
    memory_part *parts; /* one per local rank */
    int part_count, own_part;
    bool is_suspended; /* nothing is mapped at the parts' addresses */
    /* For memory that its owners allocated: how it is mapped, and this rank's part. Kind 0: this
     * rank has none, or Banyan allocated the buffer. */
    struct memory_attachments *attached;
    banyan_memory_handle adopted;
    struct memory_multicast *multicasts; /* its multicast addresses */
};

/* A registration, as its owner publishes it to peers. The id is 0 while the entry is empty or
 * changing. */
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

/* See memory_watch and memory_with. */
typedef void (*memory_watcher)(void *context, uint32_t kind, uint64_t id);
typedef banyan_status (*memory_use)(void *argument, void *address, uint64_t bytes);

typedef struct memory_space {
    banyan_world *world;
    int rank, local_rank, local_size;
    int *local_ranks; /* ranks of this node, ascending */

    ARRAY(banyan_memory *) buffers; /* ascending by id */
    uint64_t next_buffer_id;
    spans buffer_spans; /* of this rank's own parts */

    /* Held, shared, while memory is used on behalf of a peer, so that nobody accesses it after it
     * is freed or unregistered. It protects `buffers` too; only the thread that drives the world
     * changes them. */
    pthread_rwlock_t lock;
    memory_watcher watcher;
    void *watcher_context;
    ARRAY(registration) registrations;
    size_t first_free; /* index + 1; 0 when all are live */
    spans registration_spans;
    registration_entry *shown; /* published to peers; NULL until needed */

    struct memory_shares *shares;    /* of registered GPU memory; NULL until requested */
    struct attached_share *attached; /* shares of peers that are mapped here */
    struct user_memory *user;        /* NULL until needed */
    int processors; /* available to all of the node's ranks together; 0: not counted yet */
} memory_space;

/* Get the world's memory state; created on first use. */
banyan_status memory_space_of(banyan_world *world, memory_space **space);
/* NULL if nothing has used it yet. */
memory_space *memory_space_find(banyan_world *world);

/* Return the index of `rank` among the node's ranks; -1 for another node's rank. */
int memory_space_local(const memory_space *space, int rank);

/* True if the node's ranks share processors when each has this many busy threads. */
static inline bool memory_space_is_crowded(const memory_space *space, int threads)
{
    return space->processors > 0 && space->local_size * threads > space->processors;
}

/* Allocate as banyan_memory_alloc does. `sparse`: most of the memory is never touched. */
banyan_status memory_alloc(banyan_world *world, size_t bytes, bool sparse, banyan_memory **memory);

/* Unmap the buffer and free its description; NULL is ignored. */
void memory_release(banyan_memory *memory);

/* Append the device's free memory to the error of a failed allocation of `bytes`. */
banyan_status memory_explain_device(const banyan_memory *memory, size_t bytes,
                                    banyan_status status);

/* Reserve an entry in `buffers`. False, with the error set, when out of memory. */
bool memory_reserve_entry(memory_space *space);
/* Add a buffer that has its id to `buffers`, in a reserved entry. */
void memory_append(memory_space *space, banyan_memory *memory);
/* Add a buffer that has its id to a world, in a reserved entry, or remove it. */
banyan_status memory_enter_space(memory_space *space, banyan_memory *memory);
void memory_leave_space(banyan_memory *memory);

/* Return a rank's part by its index among the node's ranks. */
static inline char *memory_part_of(const banyan_memory *memory, int local)
{
    return memory->parts[local].mapped.address;
}

/* Find the symmetric memory that the handle names, as mapped here. The address 0 means the start of
 * the owner's part. NOT_FOUND, INVALID or UNSUPPORTED. */
banyan_status memory_resolve(memory_space *space, const banyan_memory_handle *handle,
                             char **address);

/* Call `use` with this rank's own memory of this kind and id while it cannot be freed or
 * unregistered. Returns what `use` returns, or NOT_FOUND. Any thread. */
banyan_status memory_with(memory_space *space, uint32_t kind, uint64_t id, memory_use use,
                          void *argument);

/* Call `watcher` when memory of this rank ends: no memory_with finds it any more, and it is still
 * mapped. NULL: no more calls. */
void memory_watch(memory_space *space, memory_watcher watcher, void *context);

/* Publish the registrations to peers in `shown` from now on. */
void registrations_show(memory_space *space, registration_entry *shown);

/* At the owner, with the lock held: return a registration, or NULL. */
const registration *registration_find(const memory_space *space, uint32_t kind, uint64_t id);
/* At the owner, with the lock held: true if the whole range of the handle is registered. */
bool registration_covers(const memory_space *space, const banyan_memory_handle *handle);

/* At a peer: true if the whole range is registered, by the entry that the owner published. */
bool registration_shown_covers(registration_entry *shown, const banyan_memory_handle *handle);

/* Return the error of a request for memory that its owner has not registered. */
banyan_status registration_missing(const memory_space *space, const banyan_memory_handle *handle);

void registrations_free(memory_space *space);

#endif
