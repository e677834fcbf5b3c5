/* Banyan: collectives between the ranks of a node.
 *
 * A communicator serves each call with a plan (plan.h). It chooses the plan from its tuning table,
 * which names one of the built-in algorithms, or from the plans that you add. The choice depends on
 * the collective, its root and reduction, the element type and the message size. It also depends on
 * the number of ranks and of ranks a node, and on whether the call is in place and its buffers are
 * registered. The communicator compiles and loads a plan when a call first needs it, and keeps it.
 * docs/collectives.md has the details.
 *
 * To use it: create a communicator on all ranks, and call the collectives below.
 *
 * The functions with a communicator are collective unless marked "Local". All ranks make the same
 * calls in the same order, with the same arguments except the buffers. Banyan does not check this,
 * unless the environment variable BANYAN_CHECK_CALLS=1 is set for rank 0 when the communicator is
 * created. It then compares every call first and reports a difference as MISMATCH on all ranks.
 *
 * On the host, a call returns when this rank's part is done: you may read the output. On GPUs, all
 * buffers are in the memory of the communicator's device. A call then enqueues its work in the
 * stream and returns; the stream may be in graph capture (see banyan_loaded_plan_run in execute.h).
 *
 * Buffers may be ordinary memory. Calls are one copy cheaper in symmetric memory (memory.h) that
 * you register with banyan_comm_register: peers then access it in place.
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

/* A communicator: plans, tuning table and registered memory for the ranks of a world. */
typedef struct banyan_comm banyan_comm;

/* Options of banyan_comm_create. */
typedef struct banyan_comm_options {
    size_t size; /* of this struct; BANYAN_COMM_OPTIONS_INIT sets it */
    /* Tuning file (banyan_comm_save_tuning or `banyan tune`). NULL: the file that the environment
     * variable BANYAN_TUNING names, else the built-in table. Rank 0's choice and file are used by
     * all ranks. */
    const char *tuning;
    int workers;         /* as in banyan_executor_options */
    DLDevice device;     /* GPU of all buffers of this rank; zero-initialized: the host */
    uint64_t timeout_ns; /* of every wait of its calls (world.h); 0: the world's */
} banyan_comm_options;

#define BANYAN_COMM_OPTIONS_INIT BANYAN_INIT_WITH(banyan_comm_options, BANYAN_MEMBER(workers, 1))

/* Create a communicator of all ranks of `world`. `options` NULL means the defaults. Collective.
 * Errors: those of banyan_executor_open (UNSUPPORTED also where ranks cannot reach each other), and
 * NOT_FOUND, INVALID, SYSTEM or FORMAT for a tuning file. */
BANYAN_API banyan_status banyan_comm_create(banyan_world *world, const banyan_comm_options *options,
                                            banyan_comm **comm);

/* Return the status of the calls that have ended. On a GPU this is the error of the first call that
 * failed because a peer was lost or late. After you synchronize a stream, the status covers every
 * call queued there. An error stays until banyan_comm_reset, and later calls that use the same plan
 * return it, too. On the host this is the world's status. The call does not wait. Local. */
BANYAN_API banyan_status banyan_comm_status(banyan_comm *comm);

/* Reset all plans (banyan_loaded_plan_reset) after a call on GPUs passed its deadline on any rank.
 * Later calls work again, and so do graphs. The call first waits for the calls that were queued;
 * graphs that contain calls must have finished. The outputs of calls that did not succeed on every
 * rank are undefined. Collective. Errors: the world's, if it has failed, as after the death of a
 * peer or, on the host, a deadline that passed. */
BANYAN_API banyan_status banyan_comm_reset(banyan_comm *comm);

/* Destroy a communicator, before its world is closed. It is freed in any case. The error is the
 * world's, if it has failed. NULL is ignored. Collective while the world is healthy. */
BANYAN_API banyan_status banyan_comm_destroy(banyan_comm *comm);

/* Register a symmetric buffer. If a later call uses memory of it, then all ranks use memory of it,
 * at the same offset. The buffer must outlive its registration. Collective. Errors: INVALID (NULL,
 * or memory of another device), NO_MEMORY. */
BANYAN_API banyan_status banyan_comm_register(banyan_comm *comm, const banyan_memory *memory);

/* End the registration of a buffer, and unload the plans that use it. Collective. Errors: INVALID
 * (the buffer is not registered). */
BANYAN_API banyan_status banyan_comm_unregister(banyan_comm *comm, const banyan_memory *memory);

/* ---- collectives ---- */

/* For all calls below:
 *
 * - `count` is a number of elements of type `dtype`. With `count` 0 a call does nothing.
 * - Reductions support the types that banyan_loaded_plan_run lists. With BANYAN_AVG, floats are
 *   scaled sums (below) with the factor 1 ÷ ranks. Of integers it is the sum, which may wrap
 *   around, divided by the ranks and rounded toward zero. The other collectives accept
 *   every type of whole bytes.
 * - A call is in place if `input` and `output` are equal. All-gather is in place if `input` is this
 *   rank's block of `output`. Reduce-scatter is in place if `output` is this rank's block of
 *   `input`.
 * - Errors, before anything moves: INVALID, NOT_FOUND (no plan serves the call), and those of
 *   banyan_loaded_plan_open and banyan_loaded_plan_run. INVALID means that a buffer is NULL, the
 *   buffers overlap but are not in place, a size overflows, or `root`, `op`, `dtype` or `stream` is
 *   not valid. */

/* output[i] = reduction of input[i] over all ranks. `count` elements in, `count` out. */
BANYAN_API banyan_status banyan_comm_allreduce(banyan_comm *comm, const void *input, void *output,
                                               size_t count, DLDataType dtype, banyan_reduce_op op,
                                               void *stream);

/* Concatenate the inputs of all ranks, in rank order. `count` elements in, ranks × count out. */
BANYAN_API banyan_status banyan_comm_allgather(banyan_comm *comm, const void *input, void *output,
                                               size_t count, DLDataType dtype, void *stream);

/* Rank r gets block r of the inputs, reduced over all ranks. ranks × count elements in, `count`
 * out. */
BANYAN_API banyan_status banyan_comm_reducescatter(banyan_comm *comm, const void *input,
                                                   void *output, size_t count, DLDataType dtype,
                                                   banyan_reduce_op op, void *stream);

/* Block r of rank s's input becomes block s of rank r's output. ranks × count elements in and out.
 */
BANYAN_API banyan_status banyan_comm_alltoall(banyan_comm *comm, const void *input, void *output,
                                              size_t count, DLDataType dtype, void *stream);

/* Copy `count` elements of the root's input to the output of every rank, including the root. The
 * other ranks' `input` is ignored and may be NULL. */
BANYAN_API banyan_status banyan_comm_broadcast(banyan_comm *comm, const void *input, void *output,
                                               size_t count, DLDataType dtype, int root,
                                               void *stream);

/* As banyan_comm_allreduce, with the result at the root only. The other ranks' `output` is ignored
 * and may be NULL. Registered memory is used like ordinary memory, since the other ranks do not
 * know the root's output. */
BANYAN_API banyan_status banyan_comm_reduce(banyan_comm *comm, const void *input, void *output,
                                            size_t count, DLDataType dtype, banyan_reduce_op op,
                                            int root, void *stream);

/* The input of rank r becomes the output of rank r + shift, modulo the ranks. `count` elements in
 * and out. `shift` may be negative. */
BANYAN_API banyan_status banyan_comm_sendrecv(banyan_comm *comm, const void *input, void *output,
                                              size_t count, DLDataType dtype, int shift,
                                              void *stream);

/* ---- scaled sums ---- */

/* output[i] = sum of factor × input[i] over all ranks. `factor` may differ between the ranks. The
 * three calls below are otherwise banyan_comm_allreduce, _reducescatter and _reduce with
 * BANYAN_SUM.
 *
 * - Floats: each input is multiplied by the factor in f32, and rounded to its type, before the sum.
 *   So the sum of f16 gradients does not overflow where their average exists. The factor is rounded
 *   to f32.
 * - Integers: the factor is a value of the type, and products wrap around, as sums do. Another
 *   factor is INVALID.
 * - The scaled inputs lie in the output; those of reduce, and of a reduce-scatter that is not in
 *   place, in memory of the communicator, which keeps twice the longest of their inputs at most.
 *   On a GPU, scaling is a kernel before that of the sum. Order such calls of one communicator: two
 *   of them must not run at the same time in different streams.
 * - A reduce-scatter in place scales its whole input there. */
BANYAN_API banyan_status banyan_comm_allreduce_scaled(banyan_comm *comm, const void *input,
                                                      void *output, size_t count, DLDataType dtype,
                                                      double factor, void *stream);

/* Rank r gets block r of the scaled inputs' sum. */
BANYAN_API banyan_status banyan_comm_reducescatter_scaled(banyan_comm *comm, const void *input,
                                                          void *output, size_t count,
                                                          DLDataType dtype, double factor,
                                                          void *stream);

/* The root gets the scaled inputs' sum. Other ranks' inputs stay as they are. */
BANYAN_API banyan_status banyan_comm_reduce_scaled(banyan_comm *comm, const void *input,
                                                   void *output, size_t count, DLDataType dtype,
                                                   double factor, int root, void *stream);

/* ---- algorithms ---- */

/* Parameters that an algorithm is compiled for. */
typedef struct banyan_algorithm_params {
    size_t size;         /* of this struct; BANYAN_ALGORITHM_PARAMS_INIT sets it */
    int ranks;           /* number of ranks, from 1 to 1,024; one rank copies */
    int ranks_per_node;  /* 0: all ranks are on one node */
    bool in_place;       /* input and output share memory */
    banyan_reduce_op op; /* of a collective that reduces */
    int root;            /* broadcast, reduce */
    int shift;     /* send-recv: rank r sends to rank r + shift, modulo the ranks; 0: to itself */
    int instances; /* 0: the algorithm's default */
    uint64_t unit_bytes; /* unit of the loops of pipelined algorithms; 0: the algorithm's default */
} banyan_algorithm_params;

#define BANYAN_ALGORITHM_PARAMS_INIT                                                               \
    BANYAN_INIT_WITH(banyan_algorithm_params, BANYAN_MEMBER(ranks, 2))

/* A built-in algorithm. The strings are static. */
typedef struct banyan_algorithm_info {
    const char *name;                  /* for example "allreduce_ring" */
    banyan_collective_kind collective; /* that it implements */
    const char *about;                 /* description, one line */
    bool reaches_peers_buffers; /* accesses peers' buffers, so ordinary memory must be staged */
} banyan_algorithm_info;

/* Set `*info` to the built-in algorithm at `index`, from 0. Errors: NOT_FOUND (`index` is not below
 * the number of algorithms). Any thread. */
BANYAN_API banyan_status banyan_algorithm_at(size_t index, banyan_algorithm_info *info);

/* Compile a built-in algorithm. `params` NULL means the defaults. The caller owns the plan. Errors:
 * NOT_FOUND (unknown name), INVALID (the algorithm does not exist for these parameters; the message
 * has the reason), NO_MEMORY. Any thread. */
BANYAN_API banyan_status banyan_algorithm_compile(const char *name,
                                                  const banyan_algorithm_params *params,
                                                  banyan_plan **plan);

/* Set `params->instances` and `params->unit_bytes`, if they are 0, to the numbers that the tuning
 * table has for this algorithm. The row is for `params->ranks` ranks with buffers on `device`,
 * elements of `dtype` and messages of `message_bytes` (a rank's input). If the table names another
 * algorithm for that size, take the numbers of the next longer size for which it names this one. If
 * there is none, take those of the longest such size. Rows for any number of ranks count up to 16
 * ranks. `tuning` is the file of a table that comes before the built-in one; NULL means the file
 * that BANYAN_TUNING names. Numbers that the table does not have stay 0. Errors: NOT_FOUND (unknown
 * name, or no such file), FORMAT, SYSTEM, NO_MEMORY. Any thread. */
BANYAN_API banyan_status banyan_algorithm_tuned(const char *name, const char *tuning,
                                                DLDevice device, DLDataType dtype,
                                                uint64_t message_bytes,
                                                banyan_algorithm_params *params);

/* Add a plan. It serves the calls of its collective, root, shift, reduction and in-place mode with
 * a message in the plan's bounds. It takes precedence over the tuning table and over the plans
 * added before. Broadcast and reduce only use plans that are in place. The plan must outlive the
 * communicator. All ranks add the same plan; the first call that loads it reports a difference as
 * MISMATCH. Collective. Errors: INVALID (NULL, a plan for another number of ranks, or of a custom
 * collective), NO_MEMORY. */
BANYAN_API banyan_status banyan_comm_add_plan(banyan_comm *comm, const banyan_plan *plan);

/* Set `*name` to the algorithm or added plan that would serve a call with root 0 and shift 1.
 * `message_bytes` is a rank's input. `op` matters for reductions only. `registered` means that the
 * buffers are in registered memory. The string lives as long as the communicator. Errors: NOT_FOUND
 * (nothing would). Local. */
BANYAN_API banyan_status banyan_comm_choice(banyan_comm *comm, banyan_collective_kind kind,
                                            uint64_t message_bytes, DLDataType dtype,
                                            banyan_reduce_op op, bool in_place, bool registered,
                                            const char **name);

/* Time of an algorithm at one message size. */
typedef struct banyan_tune_time {
    banyan_collective_kind kind; /* of the algorithm */
    bool registered;             /* the buffers are in registered memory */
    uint64_t message_bytes;      /* a rank's input */
    const char *algorithm;       /* its name */
    int instances;               /* 0: the algorithm's default */
    double ns;                   /* of one run, on the slowest rank: median of several batches */
} banyan_tune_time;

/* Options of banyan_comm_tune. */
typedef struct banyan_tune_options {
    size_t size;                   /* of this struct; BANYAN_TUNE_OPTIONS_INIT sets it */
    uint64_t min_bytes, max_bytes; /* of a rank's longer buffer; each size is 4 × the last */
    double seconds;                /* limit on the total time */
    /* NULL, or called on rank 0 before each measurement. `what` describes the measurement and is
     * valid during the call. `share` is the fraction of `seconds` that has passed. */
    void (*progress)(void *context, const char *what, double share);
    void *context; /* passed to `progress` */
    /* Measure with this type, and use the result for this type alone. Zero-initialized: measure
     * with f32, and use the result for all types without their own table. */
    DLDataType dtype;
    banyan_collective_kind kind; /* tune this collective alone; BANYAN_CUSTOM: all */
    /* NULL, or called on rank 0 with `context` after each measurement. `time` and its string are
     * valid during the call. */
    void (*measured)(void *context, const banyan_tune_time *time);
} banyan_tune_options;

#define BANYAN_TUNE_OPTIONS_INIT                                                                   \
    BANYAN_INIT_WITH(banyan_tune_options, BANYAN_MEMBER(min_bytes, 8),                             \
                     BANYAN_MEMBER(max_bytes, 64 << 20), BANYAN_MEMBER(seconds, 60))

/* Measure the algorithms for each collective and size, in ordinary and in registered memory, and
 * use the fastest from now on. On GPUs, try several numbers of instances, and time graphs of as
 * many runs as take about a millisecond. Every time is logged at level debug. Loaded plans are
 * unloaded. `options` NULL means the defaults. Collective. Errors: INVALID (an option is out of
 * range), NO_MEMORY. */
BANYAN_API banyan_status banyan_comm_tune(banyan_comm *comm, const banyan_tune_options *options);

/* Write the tuning table to a JSON file, on rank 0. The file appears at `path`, or replaces an old
 * one, only when it is complete. Collective. Errors: SYSTEM, NO_MEMORY, on all ranks. */
BANYAN_API banyan_status banyan_comm_save_tuning(banyan_comm *comm, const char *path);

#ifdef __cplusplus
}
#endif
#endif
