/* Banyan: mixed collectives of a tensor-parallel by data-parallel grid.
 *
 * In an inference engine whose attention is data-parallel and whose other layers are
 * tensor-parallel every layer ends in an all-reduce over the tensor-parallel ranks and an
 * all-gather over the data-parallel ones, or in a reduce-scatter and an all-reduce. Here each pair
 * is one operation: one launch, one synchronisation, and no byte that moves twice.
 *
 * The grid. The ranks of a node are local_tp × local_dp, the nodes inter_tp × inter_dp:
 *
 *     local rank = local tp rank + local dp rank · local_tp
 *     node       = inter tp rank + inter dp rank · inter_tp
 *     world rank = local rank + node · local size
 *
 * A rank's tensor-parallel group is all ranks of its data-parallel coordinates, tp = local_tp ·
 * inter_tp of them, and the other way round for dp; a rank's index in its groups is
 *
 *     tp index = local tp rank + inter tp rank · local_tp
 *     dp index = local dp rank + inter dp rank · local_dp
 *
 * Sums are accumulated in f32, in one order that only the grid decides, and rounded once where a
 * mode allows it: all tensor-parallel ranks have the same bits.
 *
 * "Collective" means as in world.h. Calls of banyan_mixed_run are collective: the same operations,
 * sizes and modes in the same order on all ranks, and in place on all or on none; that is not
 * checked, unless BANYAN_CHECK_CALLS=1 was set for rank 0 when the context was created: then all
 * hear of one whose arguments are wrong, and MISMATCH names what differs. One thread at a time
 * drives a context.
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

typedef struct banyan_mixed banyan_mixed;

/* Inputs and outputs are dense, of two dimensions or more; the first one counts rows. b is at least
 * 1 and a row has any number of elements. */
typedef enum banyan_mixed_op {
    BANYAN_MIXED_ALLREDUCE,           /* over tp: [b, …] to [b, …] */
    BANYAN_MIXED_ALLGATHER,           /* over dp: [b, …] to [b · dp, …], by dp index */
    BANYAN_MIXED_REDUCESCATTER,       /* over dp: [b · dp, …] to [b, …], the dp index's rows */
    BANYAN_MIXED_ALLREDUCE_ALLGATHER, /* [b, …] to [b · dp, …]: every dp index's sum over tp */
    BANYAN_MIXED_REDUCESCATTER_ALLREDUCE, /* [b · dp, …] to [b, …]: the sum over all ranks of the
                                             dp index's rows */
    BANYAN_MIXED_OPS
} banyan_mixed_op;

/* How. "Node" is the grid's, which may be a part of a machine. */
typedef enum banyan_mixed_mode {
    /* The autotuned choice for the size; without one, the documented default. */
    BANYAN_MIXED_AUTO,
    /* Every rank pushes its data to all that need it, one wait, each reduces what it needs. */
    BANYAN_MIXED_FEWEST_WAITS,
    /* Reduce-scatter and then all-gather inside the node, so that no byte crosses a link of the
     * node twice; between nodes every sum goes to all. local_tp > 1. */
    BANYAN_MIXED_FEWEST_LOCAL_BYTES,
    /* The same inside the node, and between nodes too. inter_tp > 1. */
    BANYAN_MIXED_FEWEST_BYTES,
    /* The same with NVLink's multicast inside the nodes, where BANYAN_MULTICAST=1 enables it; never
     * run on hardware. */
    BANYAN_MIXED_FEWEST_WAITS_MULTICAST,
    BANYAN_MIXED_FEWEST_LOCAL_BYTES_MULTICAST,
    BANYAN_MIXED_FEWEST_BYTES_MULTICAST,
    /* One collective of the whole world, with the rows placed before it or taken out after it. */
    BANYAN_MIXED_WORLD,
    /* Two collectives, one over tp and one over dp, through communicators of Banyan's. */
    BANYAN_MIXED_TWO,
    /* One for the world, or two, through NCCL. */
    BANYAN_MIXED_WORLD_NCCL,
    BANYAN_MIXED_TWO_NCCL,
    BANYAN_MIXED_MODES
} banyan_mixed_mode;

/* "allreduce_allgather", "fewest_waits", …; NOT_FOUND for another name. Any thread. */
BANYAN_API const char *banyan_mixed_op_name(banyan_mixed_op op);
BANYAN_API banyan_status banyan_mixed_op_parse(const char *name, banyan_mixed_op *op);
BANYAN_API const char *banyan_mixed_mode_name(banyan_mixed_mode mode);
BANYAN_API banyan_status banyan_mixed_mode_parse(const char *name, banyan_mixed_mode *mode);

typedef struct banyan_mixed_options {
    size_t size; /* of this struct; BANYAN_MIXED_OPTIONS_INIT sets it */
    /* 0: as many as it takes, all tensor-parallel. */
    int local_tp, local_dp, inter_tp, inter_dp;
    int nodes;        /* 0: the world's; else ranks are split into so many, in rank order */
    DLDataType dtype; /* f16, bf16 or f32 */
    DLDevice device;  /* where inputs and outputs lie; not named: the host */
    /* Of the fused modes' kernels. */
    int grid_size;      /* thread blocks at most; 0, and at most: the device's multiprocessors */
    int max_block_size; /* threads of a block at most; 0: no bound but the device's */
    int min_block_size; /* and at least, a multiple of 32 up to 1,024 */
    int min_num_steps;  /* a thread block is added when each has so many units to move */
    /* Bytes of b rows that one launch on a GPU carries; longer messages take several. Autotuning
     * goes up to it. 0: 64 MiB; at most 4 GiB. */
    uint64_t max_bytes;
    bool ib_enable_ibgda;     /* let NVSHMEM put from the GPU over InfiniBand */
    bool should_init_nvshmem; /* false: it is initialised already, for the ranks of this world */
    bool use_autotune;        /* banyan_mixed_open runs it, unless `autotune` names a table */
    const char *autotune;     /* a file of banyan_mixed_save_autotune; NULL: none */
} banyan_mixed_options;

#define BANYAN_MIXED_OPTIONS_INIT                                                                  \
    BANYAN_INIT_WITH(banyan_mixed_options, BANYAN_MEMBER(dtype, {kDLBfloat, 16, 1}),               \
                     BANYAN_MEMBER(min_block_size, 256), BANYAN_MEMBER(min_num_steps, 4),          \
                     BANYAN_MEMBER(ib_enable_ibgda, true),                                         \
                     BANYAN_MEMBER(should_init_nvshmem, true), BANYAN_MEMBER(use_autotune, true))

/* ---- opening ---- */

/* All four steps below: create, init_virtual_memory, init_nvshmem where nodes need it, and the
 * table: read from `autotune`, else measured with use_autotune. Collective. Errors: INVALID (a grid
 * that does not fit the world, named), MISMATCH (ranks with other options), UNSUPPORTED (the
 * machine or build lacks something, or ranks on the host are of several nodes), NVSHMEM, NO_MEMORY.
 */
BANYAN_API banyan_status banyan_mixed_open(banyan_world *world, const banyan_mixed_options *options,
                                           banyan_mixed **mixed);

/* Check grid and options against the world. Nothing is allocated on a device yet. Collective. */
BANYAN_API banyan_status banyan_mixed_create(banyan_world *world,
                                             const banyan_mixed_options *options,
                                             banyan_mixed **mixed);
/* Allocate and map what the modes use inside a node; what needs no other node runs from then on.
 * Collective, once. */
BANYAN_API banyan_status banyan_mixed_init_virtual_memory(banyan_mixed *mixed);
/* Initialise NVSHMEM, or verify with should_init_nvshmem false that it has this world's rank and
 * size, and allocate what fused modes use between nodes. Collective, once, on GPUs with several
 * nodes alone; failing is BANYAN_ERR_NVSHMEM, after which modes that need it are not valid. */
BANYAN_API banyan_status banyan_mixed_init_nvshmem(banyan_mixed *mixed);
/* Time every valid mode of every valid operation over powers of two of the bytes of b rows, from
 * 1 KiB to max_bytes (on the host to 4 MiB), and agree on the table: the slowest rank's times.
 * Collective. */
BANYAN_API banyan_status banyan_mixed_run_autotune(banyan_mixed *mixed);

/* End everything, after a failure too; ranks may come in any order. A context that is closed
 * already, or never was open, is INVALID. Nothing of it may be under way on a stream. Collective
 * while the world is healthy. */
BANYAN_API banyan_status banyan_mixed_close(banyan_mixed *mixed);

/* ---- what the grid allows ---- */

/* Up to `room` of them are written, `*count` says how many there are. A tensor-parallel grid has
 * all-reduce, a data-parallel one all-gather and reduce-scatter, one that is both the two mixed
 * ones. Local. */
BANYAN_API banyan_status banyan_mixed_valid_ops(const banyan_mixed *mixed, banyan_mixed_op *ops,
                                                size_t room, size_t *count);
/* The modes that can run the operation now, without AUTO. NCCL's are among them where all ranks
 * found its library. Whether it starts is known when it is started, by autotuning, else by the
 * first run of one of them: a context that was not tuned has them until then. When NCCL fails to
 * start they are not valid any more. Local. */
BANYAN_API banyan_status banyan_mixed_valid_modes(const banyan_mixed *mixed, banyan_mixed_op op,
                                                  banyan_mixed_mode *modes, size_t room,
                                                  size_t *count);

/* The resolved grid; of NULL all zeros. Any thread. */
typedef struct banyan_mixed_grid {
    int local_tp, local_dp, inter_tp, inter_dp;
    int nodes, local_size, tp, dp;
    int node, local_rank; /* this rank's */
    int local_tp_rank, local_dp_rank, inter_tp_rank, inter_dp_rank;
    int tp_index, dp_index;
} banyan_mixed_grid;
BANYAN_API banyan_mixed_grid banyan_mixed_describe(const banyan_mixed *mixed);

/* The world rank with these indices in its groups; -1 where there is none. Any thread. */
BANYAN_API int banyan_mixed_rank_at(const banyan_mixed_grid *grid, int tp_index, int dp_index);

/* ---- running ---- */

/* Errors, before anything moves: INVALID for an operation or mode that the grid does not allow, for
 * tensors of fewer than two dimensions, of another type or device than the context's, that are not
 * dense or not aligned to their elements, rows that dp does not divide, an output of the wrong
 * shape, memory that overlaps. Input and output may not overlap but for an all-reduce in place. On
 * a GPU the call returns when the work is queued, one launch in the fused modes, and may be
 * captured in a graph; what fails later is told by banyan_mixed_status and the next call. A rank
 * that cannot begin a fused mode's run (NO_MEMORY, SYSTEM) ends the context for all, who hear of
 * it. SYSTEM, on all ranks, with NCCL's words: it does not start, and `mode` is one of its; AUTO
 * then chooses among the others. Collective. */
BANYAN_API banyan_status banyan_mixed_run(banyan_mixed *mixed, banyan_mixed_op op,
                                          const DLTensor *input, const DLTensor *output,
                                          banyan_mixed_mode mode, void *stream);

/* How the runs went that have ended, as banyan_comm_status. Local; does not wait. */
BANYAN_API banyan_status banyan_mixed_status(banyan_mixed *mixed);

/* Time of one such call on the slowest rank: the fastest of several batches, on a GPU the median of
 * several plays of a graph of calls, by the device. It waits, and leaves the result in the output.
 * Collective. */
BANYAN_API banyan_status banyan_mixed_measure(banyan_mixed *mixed, banyan_mixed_op op,
                                              const DLTensor *input, const DLTensor *output,
                                              banyan_mixed_mode mode, uint64_t *ns);

/* ---- the autotuned table ---- */

/* The mode for so many bytes of b rows: the nearest measured size's, by ratio; not tuned: the
 * default of docs/mixed.md. Takes no locks. Local. */
BANYAN_API banyan_status banyan_mixed_select_autotune_mode(const banyan_mixed *mixed,
                                                           banyan_mixed_op op, uint64_t bytes,
                                                           banyan_mixed_mode *mode);

typedef struct banyan_mixed_timing {
    banyan_mixed_op op;
    uint64_t bytes; /* of b rows */
    banyan_mixed_mode mode;
    uint64_t ns;
    bool is_best; /* what is chosen for this operation and size */
} banyan_mixed_timing;

/* The index-th measurement; NOT_FOUND behind the last. Local. */
BANYAN_API banyan_status banyan_mixed_timing_at(const banyan_mixed *mixed, size_t index,
                                                banyan_mixed_timing *timing);

/* For people: a line an operation and size, a column a mode, in µs. Local. */
BANYAN_API banyan_status banyan_mixed_print_autotune(const banyan_mixed *mixed, FILE *file);
/* JSON; rank 0 writes, or reads for all: INVALID when nothing was measured, MISMATCH for a table of
 * another grid, type or kind of device, FORMAT for one that is malformed. Collective. */
BANYAN_API banyan_status banyan_mixed_save_autotune(banyan_mixed *mixed, const char *path);
BANYAN_API banyan_status banyan_mixed_load_autotune(banyan_mixed *mixed, const char *path);

/* ---- giving the memory back for a while ---- */

/* Release the physical memory on the GPU, the peers' mappings of it too, and keep the addresses, so
 * that graphs of fused modes stay valid. Nothing may be under way. Until banyan_mixed_resume runs
 * are INVALID, and the world may be closed. UNSUPPORTED between nodes and on the host. Collective.
 */
BANYAN_API banyan_status banyan_mixed_suspend(banyan_mixed *mixed);
/* Bring it back, at the same addresses, zeroed: all ranks begin anew. `world` is the one that it
 * was opened with or a new one of the same shape (NULL: the same); graphs of runs through
 * communicators or NCCL are valid after it in the same world alone. Collective over `world`.
 * Errors, after which it can be tried again: NO_MEMORY, which all hear of; INVALID for contexts
 * that are not suspended and for worlds of another size or in which this rank has another number;
 * UNSUPPORTED for another world where graphs hold runs through communicators. */
BANYAN_API banyan_status banyan_mixed_resume(banyan_mixed *mixed, banyan_world *world);

#ifdef __cplusplus
}
#endif
#endif
