/* Banyan: collectives, by plans that are chosen from a registry.
 *
 * A communicator knows the built-in algorithms, which are programs in Banyan's own language, and
 * the plans that its user adds; it chooses one by collective, root, reduction, element type, ranks,
 * ranks a node, message size and in-place, compiles and loads it when it is first needed, and keeps
 * it. Calls are collective and synchronous: the output can be read when they return; on GPUs, where
 * all buffers of a communicator's calls lie in the memory of its device, they are queued in the
 * stream that the call is given, and may be captured in a graph (banyan_plan_run). All ranks make
 * the same calls in the same order with the same arguments but the buffers (BANYAN_CHECK_CALLS=1
 * has every call compared first, and a difference named).
 *
 * Ordinary memory is fine everywhere. Memory from banyan_memory_alloc that was given to
 * banyan_comm_register is reached by the peers in place, with one copy less.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef BANYAN_COLLECTIVE_H
#define BANYAN_COLLECTIVE_H

#include <banyan/execute.h>
#include <banyan/program.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct banyan_comm banyan_comm;

typedef struct banyan_comm_options {
    size_t size;        /* of this struct; BANYAN_COMM_OPTIONS_INIT sets it */
    const char *tuning; /* a file that `banyan tune` wrote; NULL: BANYAN_TUNING, else built in */
    int workers;        /* as in banyan_executor_options */
    DLDevice device;    /* where all buffers of its calls lie; not named: the host */
} banyan_comm_options;

#define BANYAN_COMM_OPTIONS_INIT BANYAN_INIT_WITH(banyan_comm_options, BANYAN_MEMBER(workers, 1))

/* Collective. `options` NULL: the defaults. All ranks must be of one node (UNSUPPORTED). */
BANYAN_API banyan_status banyan_comm_create(banyan_world *world, const banyan_comm_options *options,
                                            banyan_comm **comm);
/* How the calls went that have ended: on a GPU BANYAN_OK, or the error of the first that failed, a
 * peer lost or late; whoever has synchronised the stream has it of all that were queued there. What
 * has failed stays so, and so do later calls that use the same plan, until banyan_comm_reset. On
 * the host, the world's state. Local; does not wait. */
BANYAN_API banyan_status banyan_comm_status(banyan_comm *comm);

/* Make all its plans as they were at first (banyan_plan_reset), after a call on GPUs whose deadline
 * has passed on any rank: the calls that follow are right again, also those in graphs. It waits for
 * the calls that were queued; graphs that hold some must have ended before. Outputs of calls that
 * had not ended well on every rank hold anything. Collective; fails where the world is not healthy,
 * as when a peer has died, or on the host a deadline has passed. */
BANYAN_API banyan_status banyan_comm_reset(banyan_comm *comm);

/* Collective while the world is healthy. NULL is ignored. */
BANYAN_API banyan_status banyan_comm_destroy(banyan_comm *comm);

/* From now on the ranks pass parts of this symmetric buffer at the same offset on every rank, or
 * not at all. Collective. Unregister before it is freed. */
BANYAN_API banyan_status banyan_comm_register(banyan_comm *comm, const banyan_memory *memory);
BANYAN_API banyan_status banyan_comm_unregister(banyan_comm *comm, const banyan_memory *memory);

/* Counts are elements. `input` equal to `output` (or, for all-gather and reduce-scatter, the rank's
 * block of the longer buffer) is in place; other overlaps are INVALID. `op` is for reductions. */

/* output[i] = ⊕ over ranks of input[i]; `count` elements in and out. */
BANYAN_API banyan_status banyan_allreduce(banyan_comm *comm, const void *input, void *output,
                                          size_t count, DLDataType dtype, banyan_reduce_op op,
                                          void *stream);
/* `count` elements in, ranks × count out, in rank order. */
BANYAN_API banyan_status banyan_allgather(banyan_comm *comm, const void *input, void *output,
                                          size_t count, DLDataType dtype, void *stream);
/* ranks × count elements in, `count` out: rank r's block, reduced. */
BANYAN_API banyan_status banyan_reducescatter(banyan_comm *comm, const void *input, void *output,
                                              size_t count, DLDataType dtype, banyan_reduce_op op,
                                              void *stream);
/* ranks × count elements in and out: block r of rank s becomes block s of rank r. */
BANYAN_API banyan_status banyan_alltoall(banyan_comm *comm, const void *input, void *output,
                                         size_t count, DLDataType dtype, void *stream);
/* `count` elements of root's input become everybody's output. Others may pass a NULL input. */
BANYAN_API banyan_status banyan_broadcast(banyan_comm *comm, const void *input, void *output,
                                          size_t count, DLDataType dtype, int root, void *stream);
/* As all-reduce, to root alone. Others may pass a NULL output. Registered memory is used like
 * ordinary memory: where the root's output lies, the others do not know. */
BANYAN_API banyan_status banyan_reduce(banyan_comm *comm, const void *input, void *output,
                                       size_t count, DLDataType dtype, banyan_reduce_op op,
                                       int root, void *stream);
/* Every rank's input becomes the output of the rank `shift` further on (modulo the ranks). */
BANYAN_API banyan_status banyan_sendrecv(banyan_comm *comm, const void *input, void *output,
                                         size_t count, DLDataType dtype, int shift, void *stream);

/* ---- algorithms ---- */

/* What an algorithm is built for. */
typedef struct banyan_algorithm_params {
    size_t size; /* of this struct; BANYAN_ALGORITHM_PARAMS_INIT sets it */
    int ranks;
    int ranks_per_node; /* 0: all on one */
    bool in_place;
    banyan_reduce_op op;
    int root, shift;
    int instances;       /* 0: the algorithm's default */
    uint64_t unit_bytes; /* of pipelined loops; 0: the algorithm's default */
} banyan_algorithm_params;

#define BANYAN_ALGORITHM_PARAMS_INIT                                                               \
    BANYAN_INIT_WITH(banyan_algorithm_params, BANYAN_MEMBER(ranks, 2))

typedef struct banyan_algorithm_info {
    const char *name; /* "allreduce_ring" */
    banyan_collective_kind collective;
    const char *about;          /* a sentence */
    bool reaches_peers_buffers; /* ordinary memory has to be staged for it */
} banyan_algorithm_info;

/* The index-th built-in algorithm; NOT_FOUND behind the last. Any thread. */
BANYAN_API banyan_status banyan_algorithm_at(size_t index, banyan_algorithm_info *info);

/* Compile one by name. INVALID when it cannot be built for these parameters, with the reason. */
BANYAN_API banyan_status banyan_algorithm_compile(const char *name,
                                                  const banyan_algorithm_params *params,
                                                  banyan_plan **plan);

/* Let the communicator use this plan for its collective where the message (a rank's input) is in
 * the plan's bounds; later additions come first. Collective; the plan must outlive the
 * communicator. Errors: INVALID (another number of ranks, a custom collective), MISMATCH. */
BANYAN_API banyan_status banyan_comm_add_plan(banyan_comm *comm, const banyan_plan *plan);

/* Name of the algorithm, or plan, that a call would use, with root 0 and shift 1: for
 * `message_bytes` of a rank's input. `op` is for reductions. Registered: the buffers lie in memory
 * given to banyan_comm_register. Local. */
BANYAN_API banyan_status banyan_comm_choice(banyan_comm *comm, banyan_collective_kind kind,
                                            uint64_t message_bytes, DLDataType dtype,
                                            banyan_reduce_op op, bool in_place, bool registered,
                                            const char **name);

/* Measure the algorithms for these collectives and sizes and use the fastest from now on; rank 0
 * can write the table for later processes. On GPUs with several numbers of instances each, as many
 * runs in a graph as take a millisecond. Every time is a line of the log (debug). Collective. */
typedef struct banyan_tune_options {
    size_t size; /* of this struct; BANYAN_TUNE_OPTIONS_INIT sets it */
    uint64_t min_bytes, max_bytes;
    double seconds;                                                  /* at most, in all */
    void (*progress)(void *context, const char *what, double share); /* rank 0; may be NULL */
    void *context;
    /* Measured, and then used, with elements of this type alone. Zero: f32 is measured, and what is
     * found serves every type without a table of its own. */
    DLDataType dtype;
    banyan_collective_kind kind; /* this collective alone; BANYAN_CUSTOM: all */
} banyan_tune_options;

#define BANYAN_TUNE_OPTIONS_INIT                                                                   \
    BANYAN_INIT_WITH(banyan_tune_options, BANYAN_MEMBER(min_bytes, 8),                             \
                     BANYAN_MEMBER(max_bytes, 64 << 20), BANYAN_MEMBER(seconds, 60))

BANYAN_API banyan_status banyan_comm_tune(banyan_comm *comm, const banyan_tune_options *options);
/* Collective; rank 0 writes. */
BANYAN_API banyan_status banyan_comm_save_tuning(banyan_comm *comm, const char *path);

#ifdef __cplusplus
}
#endif
#endif
