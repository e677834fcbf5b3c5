/* Banyan: the processes of a job, how they find each other, agree, and notice a death.
 *
 * A world is opened by all its ranks together. One thread at a time drives a world; several worlds
 * may be driven by several threads of a process. "Collective" means: every rank of the world calls
 * it, in the same order.
 *
 * A wait goes on as long as the peer that it waits for is alive. After 10 s, and every further 10
 * s, a line of the log names the rank that has not come. A wait ends in three ways: all have come;
 * a rank dies, leaves or aborts (BANYAN_ERR_PEER_LOST or BANYAN_ERR_ABORTED, at once, with the
 * rank's number); or nothing has moved for as long as the world's timeout (BANYAN_ERR_TIMEOUT, with
 * the number of the rank that has not come).
 *
 * A collective call that creates, opens or changes something begins at a gate, which all ranks pass
 * together before anything moves. A call that times out there has not happened on any rank: the
 * world goes on, and the call may be called again, until the late rank comes too. The late rank's
 * first call then meets the others' next one. A rank that waits in vain later, in the middle of a
 * call, is out of step with the others: this ends its world, and when it leaves, theirs.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef BANYAN_WORLD_H
#define BANYAN_WORLD_H

#include <banyan/core.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct banyan_world banyan_world;

/* A timeout that never comes: waits end when all have come, or with the world. */
#define BANYAN_FOREVER_NS (UINT64_MAX / 2)

#define BANYAN_UNIQUE_ID_BYTES 256

/* What processes need to find and trust each other: addresses and the job's secret. Treat it as a
 * password. It is plain bytes, the same length on every machine, and may be sent by any means. */
typedef struct banyan_unique_id {
    unsigned char bytes[BANYAN_UNIQUE_ID_BYTES];
} banyan_unique_id;

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

/* Make an id for a new job. Every rank, in this process or others, then opens its world with it.
 * The calling process answers the ranks' first question, from a thread of its own, until all have
 * joined; it need not be a rank itself, but must live until then. */
BANYAN_API banyan_status banyan_unique_id_create(banyan_unique_id *id);

/* Join the job. Collective over the ranks that will be in it. Who I am comes, in this order, from
 * `options` (NULL: all from the environment), from `banyan launch` (BANYAN_RANK, BANYAN_WORLD_SIZE,
 * …), from torchrun (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT),
 * from PMIx under mpirun or srun; with none of these there is one rank.
 *
 * Ranks of one machine find each other through sockets without names, which check the peer's user.
 * Ranks of other machines must prove that they know the secret; without one BANYAN_ERR_REFUSED.
 * A rank that cannot open the world (out of memory, no descriptor, a refused system call) reports
 * it where the ranks meet, and every other rank returns at once with that rank's number, status and
 * message. The call may then be made again, by all ranks; a unique id serves until all ranks were
 * ready. The others do not learn of the failure, and wait for the rank until their deadline, where
 *  - the process does not know its rank, its world or the meeting place (wrong arguments or
 *    variables, a unique id that is none, a failure of PMIx, a name that is not resolved),
 *  - it cannot reach the meeting place within a second: the network is down, rank 0 is not there
 *    yet, or rank 0 itself fails more than a second before another rank comes,
 *  - it has no descriptor left, not even up to the hard limit (ulimit -Hn), or no memory at all.
 * A launcher that ends the job when a process fails covers these (banyan launch does).
 *
 * Errors: INVALID (the sources contradict each other), TIMEOUT (names who has not come),
 * REFUSED, MISMATCH (a rank twice, two world sizes), PEER_LOST (a rank died once all had joined),
 * SYSTEM, NO_MEMORY, and the status that another rank reports. */
BANYAN_API banyan_status banyan_world_open(const banyan_world_options *options,
                                           banyan_world **world);

/* Leave. Collective when the world is healthy: returns when every rank has called it, so that no
 * rank takes another's leaving for a death. After a failure it returns at once. Frees the world in
 * any case; sub-worlds and everything opened on it must be closed first. NULL is ignored. */
BANYAN_API banyan_status banyan_world_close(banyan_world *world);

/* This process's number, and how many there are. Any thread. */
BANYAN_API int banyan_world_rank(const banyan_world *world);
BANYAN_API int banyan_world_size(const banyan_world *world);

/* Nodes are numbered by their lowest rank; local ranks count the ranks of a node in rank order. */
BANYAN_API int banyan_world_node_count(const banyan_world *world);
BANYAN_API int banyan_world_node_of(const banyan_world *world, int rank);
BANYAN_API int banyan_world_local_rank(const banyan_world *world);
BANYAN_API int banyan_world_local_size(const banyan_world *world);

/* The rank, in this world, of this node's `local_rank`-th process. */
BANYAN_API int banyan_world_local_peer(const banyan_world *world, int local_rank);

/* The deadline of every wait, from its start or its last progress. BANYAN_FOREVER_NS: none. */
BANYAN_API uint64_t banyan_world_timeout_ns(const banyan_world *world);

/* Set it for the calls that follow, at this rank and in this world alone; objects that are open
 * already keep theirs on GPUs. 0: as in the options. The thread that drives the world. */
BANYAN_API banyan_status banyan_world_set_timeout(banyan_world *world, uint64_t timeout_ns);

/* A world of some ranks of `parent`; `ranks[i]` (parent's numbering, no rank twice) becomes rank i.
 * Called by exactly these ranks, with equal lists. Members find each other through the parent,
 * which must outlive it. A list without the caller is INVALID. */
BANYAN_API banyan_status banyan_world_split(banyan_world *parent, const int *ranks, int count,
                                            banyan_world **sub);

/* End the world for everybody: all pending and future waits of every rank return
 * BANYAN_ERR_ABORTED with this rank and `reason`. Any thread. */
BANYAN_API banyan_status banyan_world_abort(banyan_world *world, const char *reason);

/* BANYAN_OK while all is well, else the error that ended the world. Does not wait. Any thread. */
BANYAN_API banyan_status banyan_world_check(banyan_world *world);

/* ---- control plane: small messages, not a data path ---- */

/* Collective. */
BANYAN_API banyan_status banyan_world_barrier(banyan_world *world);

/* `data`, `bytes` long on every rank, becomes root's. Collective; unequal sizes are MISMATCH. */
BANYAN_API banyan_status banyan_world_broadcast(banyan_world *world, void *data, size_t bytes,
                                                int root);

/* `all` receives `bytes` from every rank, in rank order. Collective; unequal sizes are MISMATCH. */
BANYAN_API banyan_status banyan_world_allgather(banyan_world *world, const void *mine, size_t bytes,
                                                void *all);

/* Every rank gives as many bytes as it likes. `*all` is their concatenation in rank order, to be
 * freed with free(); `all_bytes`, world-size long, receives each rank's count. Collective. */
BANYAN_API banyan_status banyan_world_allgatherv(banyan_world *world, const void *mine,
                                                 size_t bytes, void **all, size_t *all_bytes);

/* ---- directory: keys and values spread over the ranks by hash ---- */

/* A multimap. Under a key lie distinct values, each with the set of ranks that hold it: ranks that
 * put equal bytes share one value, so that what a thousand replicas say takes the place of one. An
 * entry lives at the rank that its key's hash selects; nobody holds, or hears of, everything. */
typedef struct banyan_directory banyan_directory;

typedef struct banyan_directory_value {
    const void *data;
    size_t bytes;
    const banyan_rank_set *ranks; /* disjoint sets, ascending by first rank */
    size_t rank_set_count;
} banyan_directory_value;

/* Called once for each key asked for; values come sorted by their bytes, equal on every rank. A key
 * that nobody has put has no values. Pointers are valid during the call. A status other than
 * BANYAN_OK ends the get and becomes its result. */
typedef banyan_status (*banyan_directory_visit)(void *context, size_t key_index,
                                                const banyan_directory_value *values,
                                                size_t value_count);

/* Collective. */
BANYAN_API banyan_status banyan_directory_open(banyan_world *world, banyan_directory **directory);

/* Note that `holders` (NULL: this rank) hold `value` under `key`. Local: others see it after the
 * next commit. Where all replicas of a thing are known, only the first of them need put it. */
BANYAN_API banyan_status banyan_directory_put(banyan_directory *directory, const char *key,
                                              const void *value, size_t bytes,
                                              const banyan_rank_set *holders);

/* Send what was put to its owners. Collective; after it every get of every rank sees it. */
BANYAN_API banyan_status banyan_directory_commit(banyan_directory *directory);

/* Look up `count` keys (0 is allowed). Collective, since owners answer in it. The status of a
 * visit, and NO_MEMORY for the answers, is this rank's alone: the owners have done their part. */
BANYAN_API banyan_status banyan_directory_get(banyan_directory *directory, size_t count,
                                              const char *const *keys, banyan_directory_visit visit,
                                              void *context);

/* Local. NULL is ignored. */
BANYAN_API void banyan_directory_close(banyan_directory *directory);

#ifdef __cplusplus
}
#endif
#endif
