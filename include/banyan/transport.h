/* Banyan: put data into peers' memory, get data from it, and signal peers.
 *
 * A transport is a table of operations, like a UCX transport. Upper layers ask it for capabilities,
 * never for its name. Banyan has the transport "shm", for ranks of one node; you may pass a table
 * of your own.
 *
 * A signal is a 64-bit counter. Every rank has its own counter under each signal number. A peer
 * adds to the counter (release), and the rank waits until the counter reaches a value (acquire).
 * When a rank sees the signal, it also sees all data that the peer put before it.
 *
 * To put into the memory of a peer, this rank needs a handle of it. The peer makes one with
 * banyan_memory_find or banyan_memory_register (memory.h) and sends it, for example by
 * banyan_world_allgather. All ranks allocate signal numbers together
 * (banyan_transport_signals_alloc).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef BANYAN_TRANSPORT_H
#define BANYAN_TRANSPORT_H

#include <banyan/memory.h>

#ifdef __cplusplus
extern "C" {
#endif

/* An open transport: this rank's connection to the others, through one table. */
typedef struct banyan_transport banyan_transport;

/* Memory of a rank, from byte `offset` of the memory that `handle` names. */
typedef struct banyan_remote {
    banyan_memory_handle handle; /* names the memory and its owner */
    uint64_t offset;             /* bytes from the start of the memory */
} banyan_remote;

/* Capabilities between this rank and a peer. */
enum {
    BANYAN_TRANSPORT_ADDRESS = 1 << 0,    /* the peer's symmetric memory is mapped: load, store */
    BANYAN_TRANSPORT_ONE_SIDED = 1 << 1,  /* access to user memory needs no thread of its owner */
    BANYAN_TRANSPORT_USER_MEMORY = 1 << 2 /* puts and gets accept registered user memory */
};

/* A transport. All operations are required. Banyan checks their arguments before it calls them. The
 * thread that drives the world calls them. */
typedef struct banyan_transport_ops {
    size_t size;      /* of this struct; a smaller one, from an older header, is refused */
    const char *name; /* for banyan_transport_find and messages */

    /* Open the transport on all ranks (collective). `*state` is passed to all other operations. */
    banyan_status (*open)(banyan_world *world, void **state);
    /* Close the transport and free its state. */
    void (*close)(void *state);
    /* Return the capabilities, or 0 if this rank cannot reach `peer`. */
    uint64_t (*capabilities)(void *state, int peer);

    /* Write `bytes` bytes to remote memory. Return when `source` may be overwritten. The peer sees
     * the data after a later signal to it, or after a flush. */
    banyan_status (*put)(void *state, const banyan_remote *destination, const void *source,
                         size_t bytes);
    /* Read `bytes` bytes of remote memory. Return when they are in `destination`. */
    banyan_status (*get)(void *state, void *destination, const banyan_remote *source, size_t bytes);
    /* Put `count` pieces to one remote memory. */
    banyan_status (*put_many)(void *state, const banyan_remote *destination,
                              const banyan_iovec *pieces, size_t count);
    /* Get `count` pieces from one remote memory. */
    banyan_status (*get_many)(void *state, const banyan_remote *source, const banyan_iovec *pieces,
                              size_t count);
    /* Put, then signal the owner of the destination. */
    banyan_status (*put_with_signal)(void *state, const banyan_remote *destination,
                                     const void *source, size_t bytes, uint32_t signal,
                                     uint64_t add);
    /* Add `add` to the counter of `peer`. */
    banyan_status (*signal)(void *state, int peer, uint32_t signal, uint64_t add);
    /* Wait until this rank's counter is at least `value`. `peer` and `what` are for the error
     * message. Fail as the world's waits do (world.h). */
    banyan_status (*wait)(void *state, uint32_t signal, uint64_t value, int peer, const char *what);
    /* Return the value of this rank's counter, with acquire semantics. */
    uint64_t (*read)(void *state, uint32_t signal);
    /* Return a number that changes when any counter of this rank changes. To wait for one of
     * several counters: read `epoch`, read the counters, then call `idle` with that epoch. */
    uint64_t (*epoch)(void *state);
    /* Return when the epoch differs from `seen`, or after a short time. Fail if the world has
     * failed. */
    banyan_status (*idle)(void *state, uint64_t seen);
    /* Wait until all earlier puts to `peer` are visible there. */
    banyan_status (*flush)(void *state, int peer);
    /* Allocate `count` consecutive signals, with counters of 0 (collective). All ranks receive the
     * same numbers. */
    banyan_status (*signals_alloc)(void *state, uint32_t count, uint32_t *first);
    /* Free signals. No peer may add to them any more. */
    void (*signals_free)(void *state, uint32_t first, uint32_t count);
    /* Set `*address` to the address at which this process maps symmetric memory
     * (BANYAN_TRANSPORT_ADDRESS). */
    banyan_status (*address)(void *state, const banyan_remote *remote, void **address);
} banyan_transport_ops;

/* Find a built-in transport ("shm"), or one of a module, by its name. The table is static. Errors:
 * NOT_FOUND (the message lists the transports). Any thread. */
BANYAN_API banyan_status banyan_transport_find(const char *name, const banyan_transport_ops **ops);

/* Open a transport over `world`. `name` NULL means the environment variable BANYAN_TRANSPORT, else
 * "shm". Collective. Errors: NOT_FOUND, MISMATCH (ranks open different transports), NO_MEMORY,
 * SYSTEM. */
BANYAN_API banyan_status banyan_transport_open(banyan_world *world, const char *name,
                                               banyan_transport **transport);

/* Open a transport with your own table, which must outlive it. Collective. Errors: INVALID (the
 * table lacks operations, or is smaller than this header's), MISMATCH (the names differ between
 * ranks), and those of the table's `open`. */
BANYAN_API banyan_status banyan_transport_open_ops(banyan_world *world,
                                                   const banyan_transport_ops *ops,
                                                   banyan_transport **transport);

/* Close a transport, before its world. No peer may use this rank's signals any more. NULL is
 * ignored. Local. */
BANYAN_API void banyan_transport_close(banyan_transport *transport);

/* Return the name in the table. Any thread. */
BANYAN_API const char *banyan_transport_name(const banyan_transport *transport);

/* Return the capabilities for `peer` (BANYAN_TRANSPORT_…), or 0 if it cannot be reached or does not
 * exist. Local. */
BANYAN_API uint64_t banyan_transport_capabilities(banyan_transport *transport, int peer);

/* ---- operations ---- */

/* The functions below check their arguments and then call the operation of the table. Except for
 * banyan_transport_signals_alloc they are local. Errors of all: INVALID (a rank, signal or range
 * that does not exist; NULL for local memory), UNSUPPORTED (the transport cannot reach the peer or
 * this kind of memory; registered GPU memory is accessed by copies that are prepared, see copy.h),
 * and those of the operation. */

/* Write `bytes` bytes from `source` to remote memory. The call returns when `source` may be
 * overwritten. The peer sees the data after a later signal to it, or after a flush. */
BANYAN_API banyan_status banyan_transport_put(banyan_transport *transport,
                                              const banyan_remote *destination, const void *source,
                                              size_t bytes);

/* Read `bytes` bytes of remote memory to `destination`. The call returns when they are there. */
BANYAN_API banyan_status banyan_transport_get(banyan_transport *transport, void *destination,
                                              const banyan_remote *source, size_t bytes);

/* Put `count` pieces to one remote memory, as banyan_transport_put. */
BANYAN_API banyan_status banyan_transport_put_many(banyan_transport *transport,
                                                   const banyan_remote *destination,
                                                   const banyan_iovec *pieces, size_t count);

/* Get `count` pieces from one remote memory, as banyan_transport_get. */
BANYAN_API banyan_status banyan_transport_get_many(banyan_transport *transport,
                                                   const banyan_remote *source,
                                                   const banyan_iovec *pieces, size_t count);

/* Put as banyan_transport_put, then add `add` to the counter `signal` of the destination's rank. */
BANYAN_API banyan_status banyan_transport_put_with_signal(banyan_transport *transport,
                                                          const banyan_remote *destination,
                                                          const void *source, size_t bytes,
                                                          uint32_t signal, uint64_t add);

/* Add `add` to the counter `signal` of `peer`, after all earlier puts to it. */
BANYAN_API banyan_status banyan_transport_signal(banyan_transport *transport, int peer,
                                                 uint32_t signal, uint64_t add);

/* Wait until this rank's counter `signal` is at least `value`. `peer` is the rank that adds to it,
 * and `what` describes the wait; both are for the error message. `what` may be NULL. Errors also:
 * those of the world's waits (TIMEOUT, PEER_LOST, ABORTED). */
BANYAN_API banyan_status banyan_transport_wait(banyan_transport *transport, uint32_t signal,
                                               uint64_t value, int peer, const char *what);

/* Return the value of this rank's counter `signal`, with acquire semantics, or 0 if the signal is
 * not allocated. */
BANYAN_API uint64_t banyan_transport_read(banyan_transport *transport, uint32_t signal);

/* Return a number that changes when any counter of this rank changes. Read it before the counters;
 * then pass it to banyan_transport_idle. */
BANYAN_API uint64_t banyan_transport_epoch(banyan_transport *transport);

/* Wait until the epoch differs from `seen`, or a short time has passed. Use it in a loop that polls
 * several counters. Errors: the world's, if it has failed. */
BANYAN_API banyan_status banyan_transport_idle(banyan_transport *transport, uint64_t seen);

/* Wait until all earlier puts to `peer` are visible there. */
BANYAN_API banyan_status banyan_transport_flush(banyan_transport *transport, int peer);

/* Allocate `count` signals, `*first` to `*first` + count - 1, with counters of 0. All ranks receive
 * the same numbers. Collective. Errors: INVALID (`count` is 0), UNSUPPORTED ("shm": more than
 * 4,194,304 signals), NO_MEMORY. */
BANYAN_API banyan_status banyan_transport_signals_alloc(banyan_transport *transport, uint32_t count,
                                                        uint32_t *first);

/* Free signals. No peer may add to them any more. Numbers that are not allocated are ignored. */
BANYAN_API void banyan_transport_signals_free(banyan_transport *transport, uint32_t first,
                                              uint32_t count);

/* Set `*address` to the address at which this process maps symmetric memory
 * (BANYAN_TRANSPORT_ADDRESS). */
BANYAN_API banyan_status banyan_transport_address(banyan_transport *transport,
                                                  const banyan_remote *remote, void **address);

#ifdef __cplusplus
}
#endif
#endif
