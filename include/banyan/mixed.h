/* Banyan: mixed collectives of a tensor-parallel by data-parallel grid.
 *
 * Some inference engines run attention data-parallel and the other layers tensor-parallel. Each
 * layer then ends in an all-reduce over the tensor-parallel ranks and an all-gather over the
 * data-parallel ranks, or in a reduce-scatter and an all-reduce. A mixed collective makes one
 * operation of such a pair, in one of several modes. In a fused mode it is one launch on a GPU.
 * docs/mixed.md describes the modes.
 *
 * The grid. The ranks of a node form a grid of local_tp × local_dp, and the nodes a grid of
 * inter_tp × inter_dp:
 *
 *     local rank = local tp rank + local dp rank · local_tp
 *     node       = inter tp rank + inter dp rank · inter_tp
 *     world rank = local rank + node · local size
 *
 * The tensor-parallel group of a rank contains the tp = local_tp · inter_tp ranks with equal
 * data-parallel coordinates. Its data-parallel group contains the dp = local_dp · inter_dp ranks
 * with equal tensor-parallel coordinates. Its indices in the two groups are
 *
 *     tp index = local tp rank + inter tp rank · local_tp
 *     dp index = local dp rank + inter dp rank · local_dp
 *
 * Sums. They accumulate in f32, in an order that depends on the grid alone, and are rounded once
 * where a mode allows it. All tensor-parallel ranks obtain identical bits.
 *
 * Calls. "Collective" is as in world.h. All ranks call banyan_mixed_run in the same order, with the
 * same operations, sizes and modes; an all-reduce is in place on all ranks or on none. Banyan
 * checks this only if BANYAN_CHECK_CALLS=1 is set for rank 0 when the context is created. Then a
 * difference is MISMATCH on all ranks, and all ranks receive the error of a rank whose arguments
 * are wrong. One thread at a time drives a context. A NULL context or result is INVALID.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef BANYAN_MIXED_H
#define BANYAN_MIXED_H

#include <stdio.h>

#include <banyan/world.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A context: the resources of one grid. */
typedef struct banyan_mixed banyan_mixed;

/* Operations and their shapes. Tensors are dense and have two dimensions or more; the first one
 * counts rows. b is at least 1. A row may have any number of elements. */
typedef enum banyan_mixed_op {
    BANYAN_MIXED_ALLREDUCE,     /* over tp: [b, …] to [b, …] */
    BANYAN_MIXED_ALLGATHER,     /* over dp: [b, …] to [b · dp, …], by dp index */
    BANYAN_MIXED_REDUCESCATTER, /* over dp: [b · dp, …] to [b, …], the rows of the dp index */
    BANYAN_MIXED_ALLREDUCE_ALLGATHER, /* [b, …] to [b · dp, …]: the sum over tp of each dp index */
    BANYAN_MIXED_REDUCESCATTER_ALLREDUCE, /* [b · dp, …] to [b, …]: the sum over all ranks of the
                                             rows of the dp index */
    BANYAN_MIXED_OPS
} banyan_mixed_op;

/* Algorithms. A "node" is one of the grid, which may be a part of a machine (options.nodes). */
typedef enum banyan_mixed_mode {
    /* The fastest mode in the autotuned table; without a table, the default in docs/mixed.md. */
    BANYAN_MIXED_AUTO,
    /* One-shot: every rank pushes its data to all ranks that need it, waits once, and reduces what
     * it needs. */
    BANYAN_MIXED_ONE_SHOT,
    /* Two-shot inside a node: reduce-scatter, then all-gather, so that no byte crosses a link of
     * the node twice. Between nodes, every sum goes to all nodes. Needs local_tp > 1. */
    BANYAN_MIXED_TWO_SHOT,
    /* Two-shot inside a node and between nodes. Needs inter_tp > 1. */
    BANYAN_MIXED_TWO_SHOT_NODES,
    /* The three modes above with NVLink multicast inside the nodes. They need BANYAN_MULTICAST=1.
     * They have never run on hardware. */
    BANYAN_MIXED_ONE_SHOT_MULTICAST,
    BANYAN_MIXED_TWO_SHOT_MULTICAST,
    BANYAN_MIXED_TWO_SHOT_NODES_MULTICAST,
    /* Not fused: one collective of the whole world, through a communicator (collective.h), on one
     * machine. Rows are placed before it or extracted after it. */
    BANYAN_MIXED_SINGLE,
    /* Not fused: for a pair of operations, one collective over tp and one over dp, through
     * communicators, on one machine. */
    BANYAN_MIXED_SEPARATE,
    /* The two modes above through NCCL. */
    BANYAN_MIXED_SINGLE_NCCL,
    BANYAN_MIXED_SEPARATE_NCCL,
    BANYAN_MIXED_MODES
} banyan_mixed_mode;

/* Return the name of an operation, for example "allreduce_allgather". The string is static. Any
 * thread. */
BANYAN_API const char *banyan_mixed_op_name(banyan_mixed_op op);

/* Find an operation by its name. Errors: NOT_FOUND (unknown name). Any thread. */
BANYAN_API banyan_status banyan_mixed_op_parse(const char *name, banyan_mixed_op *op);

/* Return the name of a mode, for example "one_shot". The string is static. Any thread. */
BANYAN_API const char *banyan_mixed_mode_name(banyan_mixed_mode mode);

/* Find a mode by its name. Names of earlier releases are known: "fewest_waits" is "one_shot", for
 * example. Errors: NOT_FOUND (unknown name). Any thread. */
BANYAN_API banyan_status banyan_mixed_mode_parse(const char *name, banyan_mixed_mode *mode);

/* All ranks pass the same options, except the number of the device and `autotune`. */
typedef struct banyan_mixed_options {
    size_t size; /* of this struct; BANYAN_MIXED_OPTIONS_INIT sets it */
    /* Sizes of the grid. 0: what remains, given to the tensor-parallel side first. */
    int local_tp, local_dp, inter_tp, inter_dp;
    int nodes;        /* 0: the world's; else the ranks form so many nodes, in rank order */
    DLDataType dtype; /* f16, bf16 or f32 */
    DLDevice device;  /* GPU of all inputs and outputs; zero-initialized: the host */
    int grid_size;    /* fused modes: thread blocks; 0: one for each multiprocessor, the maximum */
    int max_block_size; /* fused modes: most threads in a block; 0: the device's maximum */
    int min_block_size; /* fused modes: fewest threads in a block, 32 to 1,024 in steps of 32 */
    int min_num_steps;  /* fused modes: 16-byte units of a thread before a thread block is added */
    /* Bytes of b rows in one launch on a GPU; longer messages take several launches. Autotuning
     * measures up to it. 0: 64 MiB. At most 4 GiB. */
    uint64_t max_bytes;
    bool ib_enable_ibgda;     /* let NVSHMEM put from the GPU over InfiniBand */
    bool should_init_nvshmem; /* false: the program has initialized NVSHMEM for these ranks */
    bool use_autotune;        /* let banyan_mixed_open autotune, unless `autotune` is given */
    const char *autotune;     /* file of banyan_mixed_save_autotune; rank 0's counts; NULL: none */
    uint64_t timeout_ns;      /* of every wait of its calls (world.h); 0: the world's */
    /* NULL, or called on rank 0 before each measurement of autotuning. `what` describes the
     * measurement and is valid during the call. `share` is the fraction of the measurements that
     * are made. */
    void (*progress)(void *context, const char *what, double share);
    void *context; /* passed to `progress` */
} banyan_mixed_options;

#define BANYAN_MIXED_OPTIONS_INIT                                                                  \
    BANYAN_INIT_WITH(banyan_mixed_options, BANYAN_MEMBER(dtype, {kDLBfloat, 16, 1}),               \
                     BANYAN_MEMBER(min_block_size, 256), BANYAN_MEMBER(min_num_steps, 4),          \
                     BANYAN_MEMBER(ib_enable_ibgda, true),                                         \
                     BANYAN_MEMBER(should_init_nvshmem, true), BANYAN_MEMBER(use_autotune, true))

/* ---- opening ---- */

/* Open a context, ready to run. This calls banyan_mixed_open_empty,
 * banyan_mixed_init_virtual_memory, and banyan_mixed_init_nvshmem for several nodes on GPUs. It
 * then reads the table from options->autotune, or measures one if use_autotune is set. `options`
 * NULL means the defaults. Collective. Errors:
 * - INVALID: an option is out of range, or the grid does not fit the world; the message names it.
 * - MISMATCH: ranks have different options, or the table is for another grid.
 * - UNSUPPORTED: this machine or build lacks a feature, or the ranks on the host are of several
 *   nodes that no transport joins.
 * - NVSHMEM, NO_MEMORY, SYSTEM, and those of reading the table. */
BANYAN_API banyan_status banyan_mixed_open(banyan_world *world, const banyan_mixed_options *options,
                                           banyan_mixed **mixed);

/* Open a context step by step. Step 1: check the grid and the options against the world. Allocate
 * nothing on a device yet. Collective. Errors: INVALID, MISMATCH, UNSUPPORTED, NO_MEMORY, as for
 * banyan_mixed_open. */
BANYAN_API banyan_status banyan_mixed_open_empty(banyan_world *world,
                                                 const banyan_mixed_options *options,
                                                 banyan_mixed **mixed);

/* Step 2: allocate and map the memory that the modes use inside a node. Operations and modes that
 * need no other node can run afterwards. Collective, once. Errors: INVALID (called twice),
 * NO_MEMORY, UNSUPPORTED. */
BANYAN_API banyan_status banyan_mixed_init_virtual_memory(banyan_mixed *mixed);

/* Step 3, on GPUs with several nodes only: initialize NVSHMEM, and allocate the memory that the
 * fused modes use between nodes. If should_init_nvshmem is false, verify instead that NVSHMEM has
 * this world's ranks. Collective, once. Errors: INVALID (called twice, or on one node or the host),
 * NVSHMEM (it does not start; modes that need it are then not valid). */
BANYAN_API banyan_status banyan_mixed_init_nvshmem(banyan_mixed *mixed);

/* Step 4: measure every valid mode of every valid operation, and make the table of the slowest
 * rank's times. The sizes are the powers of two from 1 KiB to max_bytes (on the host at most 4
 * MiB), in bytes of b rows. Collective. Errors: INVALID (step 2 is missing), and those of the runs.
 */
BANYAN_API banyan_status banyan_mixed_run_autotune(banyan_mixed *mixed);

/* Close a context, also after a failure. No work of it may still be in a stream. The ranks may call
 * it at different times; while the world is healthy it waits for all of them, and is collective.
 * Errors: INVALID (the context is already closed, or never was open), and the world's, if it has
 * failed; the context is freed in that case, too. */
BANYAN_API banyan_status banyan_mixed_close(banyan_mixed *mixed);

/* ---- the grid ---- */

/* List the operations that the grid allows. If only tp > 1, or if there is one rank, this is
 * all-reduce. If only dp > 1, these are all-gather and reduce-scatter. If both are above 1, these
 * are the two mixed ones. Write at most `capacity` operations to `ops`, which may be NULL if
 * `capacity` is 0, and set `*count` to their full number. Local. */
BANYAN_API banyan_status banyan_mixed_valid_ops(const banyan_mixed *mixed, banyan_mixed_op *ops,
                                                size_t capacity, size_t *count);

/* List the modes, without AUTO, that can run an operation now. Write at most `capacity` modes to
 * `modes`, which may be NULL if `capacity` is 0, and set `*count` to their full number. The modes
 * through NCCL are valid if all ranks found its library. NCCL itself starts during autotuning, or
 * in the first run of such a mode; if that fails, the modes are no longer valid. Local. Errors:
 * INVALID (the grid does not allow the operation). */
BANYAN_API banyan_status banyan_mixed_valid_modes(const banyan_mixed *mixed, banyan_mixed_op op,
                                                  banyan_mixed_mode *modes, size_t capacity,
                                                  size_t *count);

/* The resolved grid. */
typedef struct banyan_mixed_grid {
    int local_tp, local_dp, inter_tp, inter_dp; /* sizes of the grid */
    int nodes, local_size;                      /* number of nodes, and of ranks in each */
    int tp, dp;                                 /* sizes of this rank's two groups */
    int node, local_rank;                       /* of this rank */
    int local_tp_rank, local_dp_rank;           /* coordinates of this rank inside its node */
    int inter_tp_rank, inter_dp_rank;           /* coordinates of its node */
    int tp_index, dp_index;                     /* of this rank in its two groups */
} banyan_mixed_grid;

/* Return the grid of a context; all members are 0 if `mixed` is NULL. Any thread. */
BANYAN_API banyan_mixed_grid banyan_mixed_describe(const banyan_mixed *mixed);

/* Return the world rank with these indices in its groups, or -1 if there is none or `grid` is NULL.
 * Any thread. */
BANYAN_API int banyan_mixed_rank_at(const banyan_mixed_grid *grid, int tp_index, int dp_index);

/* Set `*address` and `*bytes` to the context's GPU memory of a rank of this node, as mapped in this
 * process. Kernels and graphs use these addresses: suspending and resuming keep them, and nothing
 * is mapped there in between. Only the runs write to the memory. Any thread. Errors: INVALID (no
 * such rank), NOT_FOUND (the context has no such memory: it is on the host, step 2 is missing, or
 * no mode needs it). */
BANYAN_API banyan_status banyan_mixed_peer_memory(const banyan_mixed *mixed, int local_rank,
                                                  void **address, size_t *bytes);

/* Return the multicast address of that memory of all ranks of this node; if `of_tp` is true, of
 * this rank's tensor-parallel group in the node. NULL: there is no multicast. Any thread. */
BANYAN_API void *banyan_mixed_multicast_memory(const banyan_mixed *mixed, bool of_tp);

/* ---- running ---- */

/* Run an operation in a mode. The shapes are those of banyan_mixed_op. Input and output must not
 * overlap, except that an all-reduce may be in place. Memory may be of any origin on the context's
 * device. On the host (`stream` NULL), the call returns when the output is complete. On a GPU, the
 * call enqueues the work in `stream` and returns. A fused mode is one launch. The stream may be in
 * graph capture. Collective. Errors:
 * - INVALID, before anything moves: the grid does not allow the operation or mode. A tensor has
 *   fewer than two dimensions, another type or device than the context, gaps between its elements,
 *   or an address that is not a multiple of its element size. dp does not divide the rows. The
 *   output has the wrong shape. Input and output overlap.
 * - NO_MEMORY, SYSTEM: this rank cannot start a run of a fused mode. This ends the context on all
 *   ranks, and all receive the error.
 * - SYSTEM on all ranks, with NCCL's message: `mode` is one of NCCL's, and NCCL does not start.
 *   AUTO chooses another mode in this case.
 * - Those of the world's waits. On a GPU, banyan_mixed_status and the next call return them. */
BANYAN_API banyan_status banyan_mixed_run(banyan_mixed *mixed, banyan_mixed_op op,
                                          const DLTensor *input, const DLTensor *output,
                                          banyan_mixed_mode mode, void *stream);

/* Return the status of the runs that have ended. On a GPU this is the error of the first run that
 * failed; after you synchronize a stream, the status covers every run queued there. On the host
 * this is the world's status. The call does not wait. Local. */
BANYAN_API banyan_status banyan_mixed_status(banyan_mixed *mixed);

/* Measure one call of banyan_mixed_run with these arguments. `*ns` is its time on the slowest rank:
 * the fastest of several batches. On a GPU a batch is a graph of calls, which the GPU times; the
 * median of several launches counts. The call waits for the runs; the output holds the result.
 * Collective. Errors: as banyan_mixed_run. */
BANYAN_API banyan_status banyan_mixed_measure(banyan_mixed *mixed, banyan_mixed_op op,
                                              const DLTensor *input, const DLTensor *output,
                                              banyan_mixed_mode mode, uint64_t *ns);

/* ---- the autotuned table ---- */

/* Set `*mode` to the mode that AUTO uses for `bytes` bytes of b rows. This is the fastest one at
 * the measured size nearest by ratio. If the operation was not tuned, it is the default that
 * docs/mixed.md describes. The call takes no locks. Local. Errors: INVALID (the grid does not allow
 * the operation). */
BANYAN_API banyan_status banyan_mixed_select_autotune_mode(const banyan_mixed *mixed,
                                                           banyan_mixed_op op, uint64_t bytes,
                                                           banyan_mixed_mode *mode);

/* A measurement of the autotuned table. */
typedef struct banyan_mixed_timing {
    banyan_mixed_op op;     /* that was measured */
    uint64_t bytes;         /* of b rows */
    banyan_mixed_mode mode; /* that was measured */
    uint64_t ns;            /* time of a call on the slowest rank */
    bool is_best;           /* AUTO chooses this mode for this operation and size */
} banyan_mixed_timing;

/* Set `*timing` to the measurement at `index`. Local. Errors: NOT_FOUND (`index` is not below the
 * number of measurements). */
BANYAN_API banyan_status banyan_mixed_timing_at(const banyan_mixed *mixed, size_t index,
                                                banyan_mixed_timing *timing);

/* Write the table to `file` for people: one line for each operation and size, one column for each
 * mode, times in µs. Local. Errors: SYSTEM. */
BANYAN_API banyan_status banyan_mixed_print_autotune(const banyan_mixed *mixed, FILE *file);

/* Write the table to a JSON file, on rank 0. Collective. Errors, on all ranks: INVALID (nothing was
 * measured), SYSTEM, NO_MEMORY. */
BANYAN_API banyan_status banyan_mixed_save_autotune(banyan_mixed *mixed, const char *path);

/* Read a table from a JSON file on rank 0, for all ranks. Collective. Errors, on all ranks:
 * MISMATCH (the table is for another grid, type or kind of device), FORMAT (it is malformed),
 * NOT_FOUND, SYSTEM, NO_MEMORY. */
BANYAN_API banyan_status banyan_mixed_load_autotune(banyan_mixed *mixed, const char *path);

/* ---- releasing memory for a while ---- */

/* Release the physical GPU memory of the context, and the peers' mappings of it. The addresses stay
 * reserved, so graphs of fused modes stay valid. No work of the context may be in a stream. Until
 * banyan_mixed_resume, runs are INVALID, and the world may be closed. Collective. After an error
 * that leaves the world usable, the context is not suspended at any rank, and you may try again.
 * Errors: INVALID (already suspended), UNSUPPORTED (between nodes, and on the host), NO_MEMORY, on
 * all ranks. */
BANYAN_API banyan_status banyan_mixed_suspend(banyan_mixed *mixed);

/* Allocate the memory again at the same addresses, zeroed, and clear the error of earlier runs.
 * `world` is the world of the context (NULL means this one), or a new world in which this rank has
 * the same number and size. Graphs of runs through communicators or NCCL stay valid only in the
 * same world. Collective over `world`. After an error that leaves the world usable, the context is
 * suspended at all ranks, and you may try again. If a rank was out of memory while ranks exchanged
 * messages, the next attempt opens the context's communicators anew. It is UNSUPPORTED if graphs
 * contain runs through them. Errors:
 * - NO_MEMORY, on all ranks.
 * - INVALID: the context is not suspended, `world` has another size or gives this rank another
 *   number, or it is NULL and the context's world is closed.
 * - UNSUPPORTED: another world, although graphs contain runs through communicators. */
BANYAN_API banyan_status banyan_mixed_resume(banyan_mixed *mixed, banyan_world *world);

#ifdef __cplusplus
}
#endif
#endif
