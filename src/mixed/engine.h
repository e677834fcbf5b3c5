/* The implementation of a mixed collective's fused modes: a table that the host has (host.c) and
 * that a device's module provides. Shapes are converted to counts of elements, and arguments are
 * checked, before it is called.
 *
 * "Collective": all ranks of setup->world call it, in one order. */
#ifndef MIXED_ENGINE_H
#define MIXED_ENGINE_H

#include <banyan/memory.h>
#include <banyan/mixed.h>

#include "core/device_report.h"

/* The ranks of a library's collective. */
typedef enum mixed_group { MIXED_WORLD, MIXED_NODE, MIXED_TP, MIXED_DP, MIXED_GROUPS } mixed_group;

/* NVLink's multicast (memory/symmetric/symmetric.h), inside a node. */
typedef struct mixed_multicast {
    bool is_expected; /* before `open`: addresses will exist unless their creation fails */
    /* Before `use`: the multicast addresses of all ranks' parts on the node, and of this rank's
     * tensor-parallel group alone. NULL: none. */
    char *node, *tp;
    char why_not[256]; /* part of a message */
} mixed_multicast;

typedef struct mixed_engine_setup {
    /* The context's own worlds that contain this rank, indexed by group. Ranks in a group have the
     * order of world ranks. So a rank's number is its tp index in its TP's world, and its dp index
     * in its DP's world. */
    banyan_world *worlds[MIXED_GROUPS];
    banyan_mixed_grid grid;
    DLDataType dtype;
    DLDevice device;
    int grid_size, max_block_size, min_block_size, min_num_steps; /* as in the options */
    uint64_t max_bytes;                                           /* of b rows in one launch */
    uint64_t timeout_ns;
    bool ib_enable_ibgda, should_init_nvshmem;
    mixed_multicast multicast;
} mixed_engine_setup;

typedef struct mixed_call {
    banyan_mixed_op op;
    banyan_mixed_mode mode; /* a fused one */
    const void *input;
    void *output;
    uint64_t
        elems; /* in b rows, at least 1; mixed_elems computes the elements of input and output */
} mixed_call;

/* Reports of failed runs name the peer that did not come, and the call in their own word. */
static inline uint32_t mixed_report_own(banyan_mixed_op op, banyan_mixed_mode mode)
{
    return (uint32_t)op | (uint32_t)mode << 8;
}

static inline banyan_mixed_op mixed_report_op(const device_report *report)
{
    return (banyan_mixed_op)(device_report_own(report) & 0xff);
}

static inline banyan_mixed_mode mixed_report_mode(const device_report *report)
{
    return (banyan_mixed_mode)(device_report_own(report) >> 8);
}

/* NCCL as one rank sees it. */
typedef struct mixed_nccl {
    unsigned char gpu[16]; /* identifies the rank's GPU */
    uint32_t is_here;
    uint32_t shares_gpus; /* it starts on a GPU that several ranks use */
} mixed_nccl;

typedef struct mixed_engine_ops {
    size_t size;      /* of this struct */
    const char *name; /* "host", "cuda" */

    /* Local. `setup` and the memory it points to remain valid; a resume may change its worlds. */
    banyan_status (*open)(const mixed_engine_setup *setup, void **engine);
    /* Call it with no run in progress. Ignores NULL. Collective while the worlds are healthy. */
    void (*close)(void *engine);

    /* Return the symmetric device bytes that the fused modes need from each rank of the node. */
    uint64_t (*room)(const void *engine);
    /* Initialize these bytes for the first run. `parts` has each local rank's memory as mapped
     * here, which is zero, or is NULL if `room` is 0. Called again with the same addresses after a
     * resume. Collective. */
    banyan_status (*use)(void *engine, char *const *parts);

    /* Close everything that depends on the worlds in setup, which are about to close and may be
     * replaced. Libraries' collectives are opened again later. No run is in progress, and none
     * starts until `use`. Collective while the worlds are healthy. NULL on the host. */
    void (*leave_worlds)(void *engine);

    /* Initialize NVSHMEM, for several nodes. Collective. Status NVSHMEM. */
    banyan_status (*init_nvshmem)(void *engine);

    /* True if it can run this fused mode now, for an operation that the grid allows. Equal on all
     * ranks. `reason` explains a refusal, as part of a message: "the host has no multicast". */
    bool (*has)(const void *engine, banyan_mixed_op op, banyan_mixed_mode mode, char *reason,
                size_t reason_bytes);
    /* Queue the call. On the host, it is complete on return. */
    banyan_status (*run)(void *engine, const mixed_call *call, void *stream);
    /* Report the result of the fused runs that have ended so far. Does not wait. After a failure
     * all later runs fail too, until `use`. */
    void (*check)(void *engine, device_report *report);

    /* Queue in the stream. All memory is on the device. */
    banyan_status (*copy)(void *engine, void *to, const void *from, uint64_t bytes, void *stream);
    banyan_status (*zero)(void *engine, void *to, uint64_t bytes, void *stream);

    /* The collectives of a library, NCCL. All four are NULL on the host. */

    /* Look for the library. Local. UNSUPPORTED names the missing part. */
    banyan_status (*nccl_find)(void *engine, mixed_nccl *found);
    /* Called once for each group, before its first run. Collective over the group. */
    banyan_status (*nccl_open)(void *engine, mixed_group group);
    /* `elems` is the total of an all-reduce, and one rank's of an all-gather or reduce-scatter. */
    banyan_status (*nccl_run)(void *engine, mixed_group group, banyan_mixed_op op,
                              const void *input, void *output, uint64_t elems, void *stream);
    /* Report the result of the group's runs so far. Local; does not wait. */
    banyan_status (*nccl_check)(void *engine, mixed_group group);

    /* Return the time of one of `times` consecutive calls, which `queue` queues in a stream. The
     * device measures it, in a graph that was captured from them and warmed up. Collective. NULL
     * on the host. */
    banyan_status (*measure)(void *engine, banyan_status (*queue)(void *context, void *stream),
                             void *context, uint32_t times, uint64_t *ns);
} mixed_engine_ops;

/* True for the fused modes that need setup->multicast. */
static inline bool mode_is_multicast(banyan_mixed_mode mode)
{
    return mode >= BANYAN_MIXED_ONE_SHOT_MULTICAST && mode <= BANYAN_MIXED_TWO_SHOT_NODES_MULTICAST;
}

/* Elements of the input and output for `elems` in b rows. */
static inline uint64_t mixed_input_elems(banyan_mixed_op op, uint64_t elems, int dp)
{
    return op == BANYAN_MIXED_REDUCESCATTER || op == BANYAN_MIXED_REDUCESCATTER_ALLREDUCE
               ? elems * (uint64_t)dp
               : elems;
}

static inline uint64_t mixed_output_elems(banyan_mixed_op op, uint64_t elems, int dp)
{
    return op == BANYAN_MIXED_ALLGATHER || op == BANYAN_MIXED_ALLREDUCE_ALLGATHER
               ? elems * (uint64_t)dp
               : elems;
}

#endif
