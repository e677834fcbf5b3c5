/* Banyan: moving bytes into and out of peers' memory, and telling them.
 *
 * A transport is a table of operations. Upper layers ask for capabilities, never for a name. Banyan
 * brings "shm", for ranks of one node.
 *
 * Signals are 64-bit counters that live at the rank that waits for them; the peer adds to them.
 * What was put before a signal is visible to whoever has seen the signal (release, acquire).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef BANYAN_TRANSPORT_H
#define BANYAN_TRANSPORT_H

#include <banyan/memory.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct banyan_transport banyan_transport;

/* Bytes of a peer's memory, from `offset` bytes into what `handle` names. */
typedef struct banyan_remote {
    banyan_memory_handle handle;
    uint64_t offset;
} banyan_remote;

enum {
    BANYAN_TRANSPORT_ADDRESS = 1 << 0,    /* symmetric memory has an address here: load and store */
    BANYAN_TRANSPORT_ONE_SIDED = 1 << 1,  /* user memory is reached without its owner's help */
    BANYAN_TRANSPORT_USER_MEMORY = 1 << 2 /* put and get accept registered user memory */
};

typedef struct banyan_transport_ops {
    size_t size; /* of this struct: an older, shorter table is known by it */
    const char *name;

    /* Collective. `*state` is handed to all other operations. */
    banyan_status (*open)(banyan_world *world, void **state);
    void (*close)(void *state);
    uint64_t (*capabilities)(void *state, int peer); /* 0: this peer cannot be reached */

    /* Returns when `source` may be used again; the bytes are visible at the peer after a later
     * signal to it, or a flush. */
    banyan_status (*put)(void *state, const banyan_remote *destination, const void *source,
                         size_t bytes);
    /* Returns when the bytes are here. */
    banyan_status (*get)(void *state, void *destination, const banyan_remote *source, size_t bytes);
    /* Many pieces of one remote in one call. */
    banyan_status (*put_many)(void *state, const banyan_remote *destination,
                              const banyan_iovec *pieces, size_t count);
    banyan_status (*get_many)(void *state, const banyan_remote *source, const banyan_iovec *pieces,
                              size_t count);
    banyan_status (*put_with_signal)(void *state, const banyan_remote *destination,
                                     const void *source, size_t bytes, uint32_t signal,
                                     uint64_t add);
    banyan_status (*signal)(void *state, int peer, uint32_t signal, uint64_t add);
    /* Wait until this rank's own counter reaches `value`. `peer` and `what` are for the error. */
    banyan_status (*wait)(void *state, uint32_t signal, uint64_t value, int peer, const char *what);
    /* Counter's value now, with acquire order. */
    uint64_t (*read)(void *state, uint32_t signal);
    /* Wait until any of this rank's counters changes after `seen` was read (see epoch), or a while
     * has passed; for callers that poll several counters. */
    uint64_t (*epoch)(void *state);
    banyan_status (*idle)(void *state, uint64_t seen);
    /* All earlier puts to the peer are visible there. */
    banyan_status (*flush)(void *state, int peer);
    /* Reserve `count` consecutive counters, zero. Collective: the same numbers on every rank. */
    banyan_status (*signals_alloc)(void *state, uint32_t count, uint32_t *first);
    /* Local, once no peer will signal them any more. */
    void (*signals_free)(void *state, uint32_t first, uint32_t count);
    /* Where symmetric memory is mapped here (BANYAN_TRANSPORT_ADDRESS). */
    banyan_status (*address)(void *state, const banyan_remote *remote, void **address);
} banyan_transport_ops;

/* The built-in tables and those of modules, by name ("shm"). NOT_FOUND names those there are. */
BANYAN_API banyan_status banyan_transport_find(const char *name, const banyan_transport_ops **ops);

/* Open a transport over `world`; collective. `name` NULL: BANYAN_TRANSPORT, else "shm". */
BANYAN_API banyan_status banyan_transport_open(banyan_world *world, const char *name,
                                               banyan_transport **transport);
/* The same with a table of the caller's own. */
BANYAN_API banyan_status banyan_transport_open_ops(banyan_world *world,
                                                   const banyan_transport_ops *ops,
                                                   banyan_transport **transport);
BANYAN_API void banyan_transport_close(banyan_transport *transport);

/* The table's name; what can be done with `peer` (BANYAN_TRANSPORT_…, 0: it cannot be reached). */
BANYAN_API const char *banyan_transport_name(const banyan_transport *transport);
BANYAN_API uint64_t banyan_transport_capabilities(banyan_transport *transport, int peer);

/* The operations, as in the table; every argument is checked first: a rank, a signal or a range
 * that does not exist is INVALID. The thread that drives the world. */
BANYAN_API banyan_status banyan_put(banyan_transport *transport, const banyan_remote *destination,
                                    const void *source, size_t bytes);
BANYAN_API banyan_status banyan_get(banyan_transport *transport, void *destination,
                                    const banyan_remote *source, size_t bytes);
BANYAN_API banyan_status banyan_put_many(banyan_transport *transport,
                                         const banyan_remote *destination,
                                         const banyan_iovec *pieces, size_t count);
BANYAN_API banyan_status banyan_get_many(banyan_transport *transport, const banyan_remote *source,
                                         const banyan_iovec *pieces, size_t count);
BANYAN_API banyan_status banyan_put_with_signal(banyan_transport *transport,
                                                const banyan_remote *destination,
                                                const void *source, size_t bytes, uint32_t signal,
                                                uint64_t add);
BANYAN_API banyan_status banyan_signal(banyan_transport *transport, int peer, uint32_t signal,
                                       uint64_t add);
BANYAN_API banyan_status banyan_signal_wait(banyan_transport *transport, uint32_t signal,
                                            uint64_t value, int peer, const char *what);
BANYAN_API uint64_t banyan_signal_read(banyan_transport *transport, uint32_t signal);
BANYAN_API uint64_t banyan_signal_epoch(banyan_transport *transport);
BANYAN_API banyan_status banyan_signal_idle(banyan_transport *transport, uint64_t seen);
BANYAN_API banyan_status banyan_flush(banyan_transport *transport, int peer);
BANYAN_API banyan_status banyan_signals_alloc(banyan_transport *transport, uint32_t count,
                                              uint32_t *first);
BANYAN_API void banyan_signals_free(banyan_transport *transport, uint32_t first, uint32_t count);
BANYAN_API banyan_status banyan_transport_address(banyan_transport *transport,
                                                  const banyan_remote *remote, void **address);

#ifdef __cplusplus
}
#endif
#endif
