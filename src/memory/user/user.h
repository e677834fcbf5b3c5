/* Reaching the ordinary memory that a peer has registered.
 *
 * Two ways: "cma" (cross-memory attach), where the kernel copies between the two processes, and
 * "staging", where a thread of the owner copies between its memory and slots that both have mapped.
 * The node's ranks use one of them, found out together. */
#ifndef MEMORY_USER_USER_H
#define MEMORY_USER_USER_H

#include "memory/space.h"

typedef struct user_memory user_memory;

typedef enum user_memory_way {
    USER_MEMORY_CMA,
    USER_MEMORY_STAGED,
    USER_MEMORY_WAYS
} user_memory_way;

/* Which way, and set it up when nobody has yet. Collective the first time. */
banyan_status user_memory_open(memory_space *space, user_memory **user);
void user_memory_close(user_memory *user);

/* From now on; all ranks of the node do the same. */
void user_memory_use(user_memory *user, user_memory_way way);
/* Processor time of the calling thread and of what serves peers here. */
uint64_t user_memory_cpu_ns(const user_memory *user);
banyan_user_memory_path user_memory_path(const user_memory *user);

/* Copy pieces out of, or into, what a peer of this node has registered. Offsets are into the
 * handle. `total` is the sum of the pieces. INVALID, with nothing touched outside of it, when the
 * owner has not registered what the handle names. Once it returns the pieces are in place. */
banyan_status user_memory_read(user_memory *user, const banyan_memory_handle *handle,
                               const banyan_iovec *pieces, size_t count, uint64_t total);
banyan_status user_memory_write(user_memory *user, const banyan_memory_handle *handle,
                                const banyan_iovec *pieces, size_t count, uint64_t total);

#endif
