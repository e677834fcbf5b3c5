/* Banyan: the processes of a job: bootstrap, control plane and failure detection.
 *
 * A world is the set of ranks of a job, as an MPI or NCCL communicator is. All its ranks open it
 * together. One thread at a time drives a world; several threads of a process may drive several
 * worlds. "Collective" means that every rank of the world calls the function, in the same order.
 *
 * Waits. A wait continues as long as the awaited peer is alive. After 10 s, and every 10 s after
 * that, the log names the late rank (BANYAN_WAIT_LOG sets the period in seconds). A wait ends in
 * one of three ways:
 * - All ranks have arrived.
 * - A rank dies, leaves or aborts. The wait returns PEER_LOST or ABORTED at once, with the rank.
 * - Nothing has moved for the world's timeout. The wait returns TIMEOUT, with the late rank.
 *
 * Timeouts. A collective call that creates, opens or changes something begins at a gate: all ranks
 * enter before anything moves. A call that times out at the gate has had no effect on any rank. The
 * world continues, and you may call again until the late rank arrives; its first call then pairs
 * with the next call of the others. A wait that times out later, in the middle of a call, leaves
 * the rank out of step with the others. This ends the world of all ranks at once: the late rank's
 * call fails with the message of the rank that waited for it. Runs of plans and communicators on
 * the host have no gate, so each of their timeouts ends the world.
 *
 * Timeouts of objects. The options of communicators, executors, copy services, reshard plans, mixed
 * collectives and checkpoints have a `timeout_ns`, too. It bounds every wait of the object's calls
 * at this rank, from the call that creates the object on. 0 means the world's timeout, and
 * BANYAN_FOREVER_NS no bound. (In the environment variable BANYAN_TIMEOUT, 0 means no bound.) Ranks
 * may have different timeouts. If an object's call uses other objects, the bound of the outermost
 * call that has one counts. Waits on a GPU keep the bound that held when their object was opened.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef BANYAN_WORLD_H
#define BANYAN_WORLD_H

#include <banyan/core.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The ranks of a job, as this rank sees them. */
typedef struct banyan_world banyan_world;

/* A timeout that never passes. */
#define BANYAN_FOREVER_NS (UINT64_MAX / 2)

/* Size of a unique id. */
#define BANYAN_UNIQUE_ID_BYTES 256

/* Addresses and the secret of a job, with which its processes find and trust each other. Protect it
 * like a password. It is plain bytes of the same length on every machine: send it by any means. */
typedef struct banyan_unique_id {
    unsigned char bytes[BANYAN_UNIQUE_ID_BYTES]; /* of no meaning to a program */
} banyan_unique_id;

/* Options of banyan_world_open. */
typedef struct banyan_world_options {
    size_t size;                       /* of this struct; BANYAN_WORLD_OPTIONS_INIT sets it */
    int rank;                          /* -1: from the environment */
    int world_size;                    /* -1: from the environment */
    const banyan_unique_id *unique_id; /* NULL: from the environment */
    const char *node;   /* ranks with equal names share memory; NULL: BANYAN_NODE, else this boot */
    const char *secret; /* 32 hexadecimal digits; NULL: BANYAN_SECRET */
    const char *address; /* rank 0's host name or address; NULL: MASTER_ADDR */
    int port;            /* rank 0's TCP port; 0: BANYAN_PORT */
    uint64_t timeout_ns; /* of every wait; 0: BANYAN_TIMEOUT (seconds), else 10 minutes */
} banyan_world_options;

#define BANYAN_WORLD_OPTIONS_INIT                                                                  \
    BANYAN_INIT_WITH(banyan_world_options, BANYAN_MEMBER(rank, -1), BANYAN_MEMBER(world_size, -1))

/* Create an id for a new job. Pass it to all ranks, in this process or others; each opens its world
 * with it. A thread of the calling process answers the ranks until all have joined. The process
 * need not be a rank, but must live until then. Any thread. Errors: SYSTEM, NO_MEMORY. */
BANYAN_API banyan_status banyan_unique_id_create(banyan_unique_id *id);

/* Join the job. The caller owns the world. Collective over the ranks of the job.
 *
 * Rank, size and address come from the first of these sources that has them: `options` (NULL means
 * none); `banyan launch` (BANYAN_RANK, BANYAN_WORLD_SIZE, …); torchrun (RANK, WORLD_SIZE,
 * LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT); PMIx, under mpirun or srun. Without any
 * of them the world has one rank.
 *
 * Ranks of one machine connect through abstract sockets, and check that the peer has the same user.
 * Ranks of other machines must prove that they know the secret; without a secret they are REFUSED.
 *
 * Failure of a rank. If a rank cannot open the world (out of memory, no descriptor, a refused
 * system call), it reports this at the rendezvous. Every other rank then returns at once, with the
 * number, status and message of that rank. All ranks may call again; a unique id serves until all
 * ranks were ready. In these cases the other ranks do not learn of the failure, and wait for the
 * rank until their deadline:
 * - The process does not know its rank, its world or the rendezvous: wrong arguments or variables,
 *   an invalid unique id, a failure of PMIx, or a host name that cannot be resolved.
 * - It cannot reach the rendezvous within a second: the network is down, rank 0 is not there yet,
 *   or rank 0 itself fails more than a second before another rank arrives.
 * - It has no descriptor left, up to the hard limit (ulimit -Hn), or no memory at all.
 *
 * A launcher that ends the job when a process fails covers these cases (banyan launch does).
 *
 * Errors: INVALID (the sources contradict each other), TIMEOUT (with the late ranks), REFUSED,
 * MISMATCH (two processes with one rank; two world sizes), PEER_LOST (a rank died after all had
 * joined), SYSTEM, NO_MEMORY, and the status that another rank reports. */
BANYAN_API banyan_status banyan_world_open(const banyan_world_options *options,
                                           banyan_world **world);

/* Leave the world and free it, in any case. Close its sub-worlds and everything opened on it first.
 * While the world is healthy, the call is collective and waits for all ranks, so that no rank takes
 * a departure for a death. After a failure it returns at once, with that error. NULL is ignored. */
BANYAN_API banyan_status banyan_world_close(banyan_world *world);

/* Return this process's rank. Any thread. */
BANYAN_API int banyan_world_rank(const banyan_world *world);

/* Return the number of ranks. Any thread. */
BANYAN_API int banyan_world_size(const banyan_world *world);

/* Return the number of nodes. Nodes have numbers from 0, in the order of their lowest ranks. Any
 * thread. */
BANYAN_API int banyan_world_node_count(const banyan_world *world);

/* Return the number of the node of `rank`. Any thread. */
BANYAN_API int banyan_world_node_of(const banyan_world *world, int rank);

/* Return this rank's index among the ranks of its node, in rank order. Any thread. */
BANYAN_API int banyan_world_local_rank(const banyan_world *world);

/* Return the number of ranks of this node. Any thread. */
BANYAN_API int banyan_world_local_size(const banyan_world *world);

/* Return the rank in this world of the process of this node with index `local_rank`. Any thread. */
BANYAN_API int banyan_world_local_peer(const banyan_world *world, int local_rank);

/* Return the timeout of every wait, in nanoseconds from its start or its last progress, or
 * BANYAN_FOREVER_NS if there is none. During a call of an object with a timeout of its own, return
 * the object's. Any thread. */
BANYAN_API uint64_t banyan_world_timeout_ns(const banyan_world *world);

/* Set the timeout of later calls, in this world and at this rank alone. 0 means the timeout that
 * the world was opened with (for a sub-world, that of its parent then). Objects on GPUs that are
 * already open keep theirs, and so do objects with a timeout of their own. Local. */
BANYAN_API banyan_status banyan_world_set_timeout(banyan_world *world, uint64_t timeout_ns);

/* Open a world of some ranks of `parent`. The rank `ranks[i]` of the parent becomes rank i. They
 * connect through the parent, which must outlive the sub-world. Collective over exactly these
 * ranks, with equal lists. Errors: INVALID (a rank is out of range or listed twice, or the list
 * does not contain the caller), NO_MEMORY, and the parent's, if it has failed. */
BANYAN_API banyan_status banyan_world_split(banyan_world *parent, const int *ranks, int count,
                                            banyan_world **sub);

/* End the world on all ranks. All current and future waits of every rank return ABORTED, with this
 * rank and `reason`, which may be NULL. Any thread. */
BANYAN_API banyan_status banyan_world_abort(banyan_world *world, const char *reason);

/* Return BANYAN_OK if the world is healthy, otherwise the error that ended it. The call does not
 * wait. Any thread. */
BANYAN_API banyan_status banyan_world_check(banyan_world *world);

/* ---- control plane: for small messages, not for bulk data ---- */

/* Errors of all calls: those of the world's waits, and NO_MEMORY. */

/* Wait until all ranks have called this. Collective. */
BANYAN_API banyan_status banyan_world_barrier(banyan_world *world);

/* Copy `bytes` bytes of `data` from rank `root` to `data` on every rank. Collective. Errors also:
 * MISMATCH (the ranks pass different sizes), INVALID (`root` is out of range). */
BANYAN_API banyan_status banyan_world_broadcast(banyan_world *world, void *data, size_t bytes,
                                                int root);

/* Gather `bytes` bytes of `mine` from every rank in `all`, in rank order. Collective. Errors also:
 * MISMATCH (the ranks pass different sizes). */
BANYAN_API banyan_status banyan_world_allgather(banyan_world *world, const void *mine, size_t bytes,
                                                void *all);

/* Gather any number of bytes from each rank. `*all` is their concatenation in rank order; free it
 * with free(). `all_bytes` must have space for world-size numbers and receives the size of each
 * rank's part. Collective. */
BANYAN_API banyan_status banyan_world_allgatherv(banyan_world *world, const void *mine,
                                                 size_t bytes, void **all, size_t *all_bytes);

/* ---- directory: keys and values, distributed over the ranks by hash ---- */

/* A multimap. Each key has distinct values, and each value the set of ranks that hold it. Ranks
 * that put equal bytes share one value, so a thousand replicas take the space of one. A key's hash
 * selects the rank that owns its entry. No rank has or receives all entries. */
typedef struct banyan_directory banyan_directory;

/* A value under a key, and the ranks that hold it. */
typedef struct banyan_directory_value {
    const void *data;             /* the value */
    size_t bytes;                 /* length of the value */
    const banyan_rank_set *ranks; /* disjoint sets, ascending by first rank */
    size_t rank_set_count;        /* number of sets in `ranks` */
} banyan_directory_value;

/* Receive the values of one requested key, sorted by their bytes: the same on every rank. A key
 * that no rank has put has no values. The pointers are valid during the call. A status other than
 * BANYAN_OK ends the get, which returns it. */
typedef banyan_status (*banyan_directory_visit)(void *context, size_t key_index,
                                                const banyan_directory_value *values,
                                                size_t value_count);

/* Open an empty directory. Collective. Errors: those of the world's waits, NO_MEMORY. */
BANYAN_API banyan_status banyan_directory_open(banyan_world *world, banyan_directory **directory);

/* Note that the ranks `holders` (NULL: this rank) hold `value` under `key`. Key and value are
 * copied. Other ranks see the entry after the next commit. If all replicas of a value are known,
 * only the first of them needs to put it. Local. Errors: NO_MEMORY. */
BANYAN_API banyan_status banyan_directory_put(banyan_directory *directory, const char *key,
                                              const void *value, size_t bytes,
                                              const banyan_rank_set *holders);

/* Send the new entries to their owners. All later gets, on every rank, see them. Collective.
 * Errors: those of the world's waits, NO_MEMORY. */
BANYAN_API banyan_status banyan_directory_commit(banyan_directory *directory);

/* Look up `count` keys, which may be 0, and call `visit` once for each key. Collective, because the
 * owners answer during the call. Errors: those of the world's waits. The status of a visit, and
 * NO_MEMORY for the answers, are returned on this rank alone. */
BANYAN_API banyan_status banyan_directory_get(banyan_directory *directory, size_t count,
                                              const char *const *keys, banyan_directory_visit visit,
                                              void *context);

/* Close a directory, before its world. NULL is ignored. Local. */
BANYAN_API void banyan_directory_close(banyan_directory *directory);

#ifdef __cplusplus
}
#endif
#endif
