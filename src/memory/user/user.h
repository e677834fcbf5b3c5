/* Access ordinary memory that a peer has registered.
 *
 * Two ways exist. "cma" (cross-memory attach): the kernel copies between the two processes.
 * "staging": a thread of the owner copies between its memory and slots that both have mapped. All
 * ranks of a node use one way for each shape of transfers, which they choose together. */
#ifndef MEMORY_USER_USER_H
#define MEMORY_USER_USER_H

#include "memory/space.h"

typedef struct user_memory user_memory;

typedef enum user_memory_way {
    USER_MEMORY_CMA,
    USER_MEMORY_STAGED,
    USER_MEMORY_WAYS
} user_memory_way;

extern const char *const user_memory_way_names[USER_MEMORY_WAYS];

/* Shapes of transfers, for which the ways differ in speed. */
typedef enum user_memory_shape {
    USER_MEMORY_WHOLE, /* long pieces */
    USER_MEMORY_ROWS,  /* pieces that are shorter than USER_MEMORY_ROW_BYTES on average */
    USER_MEMORY_SHAPES
} user_memory_shape;

#define USER_MEMORY_ROW_BYTES 8192

/* Choose the ways and set them up, if that has not happened yet. Collective the first time. */
banyan_status user_memory_open(memory_space *space, user_memory **user);
void user_memory_close(user_memory *user);

/* Use this way for transfers of a shape from now on; all ranks of the node make this call. */
void user_memory_use(user_memory *user, user_memory_shape shape, user_memory_way way);
/* Return the processor time of the calling thread and of the threads that serve peers here. */
uint64_t user_memory_cpu_ns(const user_memory *user);
/* STAGING if it is the way of any shape: then owners' threads take part. */
banyan_user_memory_path user_memory_path(const user_memory *user);

/* Copy pieces from or to memory that a peer of this node has registered. Offsets are relative to
 * the handle. `total` is the sum of the pieces. INVALID, with nothing outside accessed, when the
 * owner has not registered the handle's memory. The pieces are in place when it returns. */
banyan_status user_memory_read(user_memory *user, const banyan_memory_handle *handle,
                               const banyan_iovec *pieces, size_t count, uint64_t total);
banyan_status user_memory_write(user_memory *user, const banyan_memory_handle *handle,
                                const banyan_iovec *pieces, size_t count, uint64_t total);

/* Measure which of the ways in the set `ways` (bits) is the fastest on this machine, for each
 * shape. All ranks of the node read from each other at once, as they do when weights move. `best`
 * is equal on all of them. Collective over the world. */
banyan_status measure_ways(memory_space *space, user_memory *user, unsigned ways,
                           user_memory_way best[USER_MEMORY_SHAPES]);

/* Test whether the kernel lets the node's ranks access each other's memory. Every rank reads and
 * writes a word of every peer on its node. `works` is equal on all of them; if false, `reason` is
 * the kernel's error. Collective. */
banyan_status probe_cma(memory_space *space, bool *works, char *reason, size_t reason_bytes);

#endif
