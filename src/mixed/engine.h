/* Who runs a mixed collective's fused modes: a table that the host has (host.c) and that a device's
 * module brings. Shapes have become counts of elements; arguments are checked.
 *
 * "Collective": all ranks of setup->world call it, in the same order. */
#ifndef MIXED_ENGINE_H
#define MIXED_ENGINE_H

#include <banyan/memory.h>
#include <banyan/mixed.h>

/* Whose ranks a collective of a library's goes over. */
typedef enum mixed_group { MIXED_WORLD, MIXED_NODE, MIXED_TP, MIXED_DP, MIXED_GROUPS } mixed_group;

/* NVLink's multicast (memory/symmetric/multicast.h), inside a node. */
typedef struct mixed_multicast {
    bool is_expected; /* before `open`: unless making addresses fails, there will be some */
    /* Before `use`: what stands for the parts of all ranks of the node, and for those of this
     * rank's tensor-parallel group alone. NULL: there is none. */
    char *node, *tp;
    char why_not[256]; /* as part of a sentence */
} mixed_multicast;

typedef struct mixed_engine_setup {
    /* Worlds of the context's own, by group: this rank's. In a group's world ranks have the order
     * of world ranks, so that a rank is its tp index in its TP's, and its dp index in its DP's. */
    banyan_world *worlds[MIXED_GROUPS];
    banyan_mixed_grid grid;
    DLDataType dtype;
    DLDevice device;
    int grid_size, max_block_size, min_block_size, min_num_steps; /* as the options have them */
    uint64_t max_bytes; /* of b rows, that one launch carries */
    uint64_t timeout_ns;
    bool ib_enable_ibgda, should_init_nvshmem;
    mixed_multicast multicast;
} mixed_engine_setup;

typedef struct mixed_call {
    banyan_mixed_op op;
    banyan_mixed_mode mode; /* a fused one */
    const void *input;
    void *output;
    uint64_t elems; /* of b rows, at least 1; how long that makes input and output: mixed_elems */
} mixed_call;

/* A run that failed. */
typedef struct mixed_report {
    enum mixed_verdict { MIXED_FINE, MIXED_LATE, MIXED_STOPPED } verdict;
    int rank; /* of the world, that was waited for */
    uint64_t waited_ns;
    banyan_mixed_op op;
    banyan_mixed_mode mode;
} mixed_report;

/* NCCL, as a rank finds it. */
typedef struct mixed_nccl {
    unsigned char gpu[16]; /* the rank's */
    uint32_t is_here;
    uint32_t shares_gpus; /* it starts on a GPU that several ranks have */
} mixed_nccl;

typedef struct mixed_engine_ops {
    size_t size;      /* of this struct */
    const char *name; /* "host", "cuda" */

    /* Local. `setup` stays where it is, and so does what it points to; a resume may change its
     * worlds. */
    banyan_status (*open)(const mixed_engine_setup *setup, void **engine);
    /* Nothing is under way. NULL is ignored. Collective while the worlds are healthy. */
    void (*close)(void *engine);

    /* Symmetric bytes of the device that the fused modes want of each rank of the node (0: none),
     * and then, where each rank of the node has them, by local rank, as mapped here. They are zero,
     * and `use` makes of them what the first run expects; it is called again after a resume, with
     * the same addresses, and, with NULL, where `room` is 0. Collective. */
    uint64_t (*room)(const void *engine);
    banyan_status (*use)(void *engine, char *const *parts);

    /* The worlds in setup are about to be closed, and others may take their place: end what hangs
     * on them; libraries' collectives are opened anew. Nothing is under way, and nothing runs until
     * `use`. Collective while the worlds are healthy. NULL on the host. */
    void (*leave_worlds)(void *engine);

    /* NVSHMEM, for nodes. Collective. Status NVSHMEM. */
    banyan_status (*init_nvshmem)(void *engine);

    /* Can it run this fused mode of an operation that the grid allows, now? Equal on all ranks.
     * `reason` says why not, as part of a sentence: "the host has no multicast". */
    bool (*has)(const void *engine, banyan_mixed_op op, banyan_mixed_mode mode, char *reason,
                size_t reason_bytes);
    /* Queue it. On the host it is done. */
    banyan_status (*run)(void *engine, const mixed_call *call, void *stream);
    /* How the fused runs went that have ended so far. Does not wait. Of a failed one all later ones
     * fail too, until `use`. */
    void (*check)(void *engine, mixed_report *report);

    /* ---- what the other modes need ---- */

    /* Queue in the stream: memory of the device from and to. */
    banyan_status (*copy)(void *engine, void *to, const void *from, uint64_t bytes, void *stream);
    banyan_status (*zero)(void *engine, void *to, uint64_t bytes, void *stream);

    /* A library's collectives (NCCL's); all four NULL on the host. Is the library here? Local;
     * UNSUPPORTED says what is missing. Opening is collective over the group, once a group, before
     * its first run. `elems`: all-reduce's, all-gather's of a rank, reduce-scatter's of a rank.
     * Checking says how the group's runs have gone so far; local, does not wait. */
    banyan_status (*nccl_find)(void *engine, mixed_nccl *found);
    banyan_status (*nccl_open)(void *engine, mixed_group group);
    banyan_status (*nccl_run)(void *engine, mixed_group group, banyan_mixed_op op,
                              const void *input, void *output, uint64_t elems, void *stream);
    banyan_status (*nccl_check)(void *engine, mixed_group group);

    /* Time of one of `times` calls in a row, which `queue` queues in a stream: by the device, of a
     * graph that has been captured of them and warmed up. Collective. NULL on the host. */
    banyan_status (*measure)(void *engine, banyan_status (*queue)(void *context, void *stream),
                             void *context, uint32_t times, uint64_t *ns);
} mixed_engine_ops;

/* Elements of input and output for `elems` of b rows. */
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
