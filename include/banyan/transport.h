/* Banyan: put data into peers' memory, get data from it, and signal peers.
 *
 * A transport is a table of operations, like a UCX transport. Upper layers ask it for capabilities,
 * never for its name. Banyan has the transport "shm", for ranks of one node, and the module "ucx",
 * for ranks of any node. An open transport uses the best of several tables for each peer. You may
 * pass a table of your own.
 *
 * A signal is a 64-bit counter. Every rank has its own counter under each signal number. A peer
 * adds to the counter (release), and the rank waits until the counter reaches a value (acquire).
 * When a rank sees the signal, it also sees all data that the peer put before it. Counters lie in
 * symmetric memory, so every table that can add to memory can signal.
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
    BANYAN_TRANSPORT_ADDRESS = 1 << 0,     /* the peer's symmetric memory is mapped: load, store */
    BANYAN_TRANSPORT_ONE_SIDED = 1 << 1,   /* access to user memory needs no thread of its owner */
    BANYAN_TRANSPORT_USER_MEMORY = 1 << 2, /* puts and gets accept registered user memory */
    BANYAN_TRANSPORT_CUDA = 1 << 3 /* and memory of CUDA GPUs: any here, and the peer's symmetric */
};

/* Services that Banyan offers to an open table. Any thread may call these functions until `close`
 * has returned. */
typedef struct banyan_transport_host {
    banyan_world *world; /* whose ranks the transport connects */
    void *context;       /* first argument of the functions below */
    /* Wake the threads that wait for counters of this rank: some may have changed. */
    void (*notify)(void *context);
    /* Find this rank's memory that peers name by `kind` and `id` (banyan_memory_handle), and call
     * `use` with its address and length while it cannot be freed. Return what `use` returns.
     * Errors: NOT_FOUND. */
    banyan_status (*with_memory)(void *context, uint32_t kind, uint64_t id,
                                 banyan_status (*use)(void *argument, void *address,
                                                      uint64_t bytes),
                                 void *argument);
} banyan_transport_host;

/* Maximum number of spans of a redirection. */
#define BANYAN_REDIRECTION_SPANS 32

/* Bytes that a transport has redirected. */
typedef struct banyan_redirected {
    size_t offset, bytes; /* in the part of the redirection */
} banyan_redirected;

/* A part of this rank's symmetric memory, and the memory at which puts of others are to arrive
 * instead. A transport redirects a put if it can, and lists where it did. */
typedef struct banyan_redirection {
    char *address; /* first byte of the part */
    size_t bytes;  /* of the part */
    char *to;      /* memory of as many bytes */
    size_t span_count;
    banyan_redirected spans[BANYAN_REDIRECTION_SPANS]; /* in any order; they may overlap */
} banyan_redirection;

/* A transport. All operations are required, except where NULL is allowed. Banyan checks arguments
 * before it calls an operation. The thread that drives the world calls them. A `banyan_remote` with
 * the address 0 in its handle names symmetric memory from its first byte. */
typedef struct banyan_transport_ops {
    size_t size;      /* of this struct; a smaller one, from an older header, is refused */
    const char *name; /* for banyan_transport_find and messages */

    /* Open the transport on all ranks (collective). `*state` is passed to all other operations.
     * `host` stays valid until `close` has returned. */
    banyan_status (*open)(const banyan_transport_host *host, void **state);
    /* Close the transport and free its state. */
    void (*close)(void *state);
    /* Return the capabilities, or 0 if this rank cannot reach `peer`. */
    uint64_t (*capabilities)(void *state, int peer);
    /* Return the estimated time to put `bytes` bytes to `peer` in ns, for a peer that this rank can
     * reach. The table with the lowest cost for 64 KiB serves the peer. */
    uint64_t (*cost_ns)(void *state, int peer, size_t bytes);

    /* Write `bytes` bytes to remote memory. Return when `source` may be overwritten. The peer sees
     * the data after a later addition to one of its counters, or after a flush. */
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
    /* Add `add` to a 64-bit counter in symmetric memory, after all earlier puts to its owner. */
    banyan_status (*add)(void *state, const banyan_remote *counter, uint64_t add);
    /* Put, then add to a counter of the same rank. */
    banyan_status (*put_with_add)(void *state, const banyan_remote *destination, const void *source,
                                  size_t bytes, const banyan_remote *counter, uint64_t add);
    /* Add `add` to a counter, and set `*before` to its value before the addition. */
    banyan_status (*fetch_add)(void *state, const banyan_remote *counter, uint64_t add,
                               uint64_t *before);
    /* Wait until all earlier puts and additions to `peer` are visible there. */
    banyan_status (*flush)(void *state, int peer);

    /* Begin to put, and return. The source stays unchanged until `pending` has returned 0 for the
     * rank. NULL: `put` is used, and the table has neither of the next two. */
    banyan_status (*put_begin)(void *state, const banyan_remote *destination, const void *source,
                               size_t bytes);
    /* Return the number of operations to `peer` that have not completed here. Any thread. */
    size_t (*pending)(void *state, int peer);
    /* Wait until `pending` is 0. If that fails, the operations are cancelled. */
    banyan_status (*settle)(void *state, int peer);
    /* Set `*address` to the address at which this process maps symmetric memory
     * (BANYAN_TRANSPORT_ADDRESS). */
    banyan_status (*address)(void *state, const banyan_remote *remote, void **address);

    /* Wait until all earlier puts and additions are visible. Banyan calls it before this rank sends
     * a message of the control plane, so that a barrier (world.h) comes after them. NULL: they are
     * visible at once. */
    banyan_status (*flush_all)(void *state);
    /* Process what has arrived, and return the number of events. The caller polls. NULL: memory
     * changes by itself. */
    size_t (*progress)(void *state);
    /* The caller stops polling, and may sleep: a thread of the transport goes on, and notifies the
     * host. NULL if `progress` is NULL. */
    void (*rest)(void *state);
    /* This rank's memory of this kind and id ends. NULL: the transport keeps nothing of it. */
    void (*forget)(void *state, uint32_t kind, uint64_t id);
    /* Begin a redirection, which stays the caller's and is in use until a call with NULL ends it.
     * NULL: the transport redirects nothing. */
    void (*redirect)(void *state, banyan_redirection *redirection);
} banyan_transport_ops;

/* Find a built-in transport ("shm"), or one of a module, by its name. The table is static. Errors:
 * NOT_FOUND (the message lists the transports). Any thread. */
BANYAN_API banyan_status banyan_transport_find(const char *name, const banyan_transport_ops **ops);

/* Open a transport over `world`. `name` lists tables, separated by commas, such as "shm,ucx"; each
 * peer is reached by the one with the lowest cost. `name` NULL means the environment variable
 * BANYAN_TRANSPORT. If that is not set either, it is "shm", and between nodes also "ucx" if that
 * module works on all ranks. Collective. Errors: NOT_FOUND (there is no such table), UNSUPPORTED (a
 * module does not work here), MISMATCH (ranks open different transports), NO_MEMORY, SYSTEM. */
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

/* Return the names of the transport's tables, separated by commas. Any thread. */
BANYAN_API const char *banyan_transport_name(const banyan_transport *transport);

/* Return the name of the table that serves `peer`, or NULL if the peer cannot be reached or does
 * not exist. `cost_ns` (NULL: not wanted) receives the table's estimate for a put of 64 KiB. Local.
 */
BANYAN_API const char *banyan_transport_peer(banyan_transport *transport, int peer,
                                             uint64_t *cost_ns);

/* Return the capabilities for `peer` (BANYAN_TRANSPORT_…), or 0 if it cannot be reached or does not
 * exist. Local. */
BANYAN_API uint64_t banyan_transport_capabilities(banyan_transport *transport, int peer);

/* ---- operations ---- */

/* The functions below check their arguments and then call the operation of the table. Except for
 * banyan_transport_signals_alloc they are local. Errors of all: INVALID (a rank, signal or range
 * that does not exist; NULL for local memory), UNSUPPORTED (the transport cannot reach the peer or
 * this kind of memory, such as a GPU's without BANYAN_TRANSPORT_CUDA; registered GPU memory is
 * accessed by copies that are prepared, see copy.h),
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

/* Add `add` to the counter `signal` of `peer`, and set `*before` to its value before the addition.
 * The caller waits for the answer. Earlier puts may become visible later than the addition. */
BANYAN_API banyan_status banyan_transport_fetch_add(banyan_transport *transport, int peer,
                                                    uint32_t signal, uint64_t add,
                                                    uint64_t *before);

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

/* Begin to put, and return: `source` must not change until banyan_transport_settle has returned, or
 * banyan_transport_pending has returned 0 for the destination's rank. Order and visibility are
 * those of banyan_transport_put. Several threads may call these three functions at once. */
BANYAN_API banyan_status banyan_transport_put_begin(banyan_transport *transport,
                                                    const banyan_remote *destination,
                                                    const void *source, size_t bytes);

/* Return the number of operations to `peer` whose sources are still in use. */
BANYAN_API size_t banyan_transport_pending(banyan_transport *transport, int peer);

/* Wait until no source of an operation to `peer` is in use. If that fails, the operations are
 * cancelled, so that the sources may be freed. */
BANYAN_API banyan_status banyan_transport_settle(banyan_transport *transport, int peer);

/* Wait until all earlier puts to `peer` are visible there. */
BANYAN_API banyan_status banyan_transport_flush(banyan_transport *transport, int peer);

/* Allocate `count` signals, `*first` to `*first` + count - 1, with counters of 0. All ranks receive
 * the same numbers. Collective. Errors: INVALID (`count` is 0), UNSUPPORTED (more than 4,194,304
 * signals), NO_MEMORY. */
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
