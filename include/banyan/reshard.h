/* Banyan: reshard a model, from one parallel layout to another.
 *
 * First plan, then run. Planning is collective and happens once. Each rank computes its own
 * transfers, from its layouts (layout.h) and from what the directory (world.h) reports about its
 * own tensors. A run moves the bytes through a copy service (copy.h). A plan can run any number of
 * times. docs/internals/planner.md describes the planner.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef BANYAN_RESHARD_H
#define BANYAN_RESHARD_H

#include <banyan/layout.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- plan ---- */

/* A box that one rank sends and another receives, as one of these ranks sees it. */
typedef struct banyan_transfer {
    const char *name;     /* of the global tensor */
    banyan_box box;       /* in global coordinates */
    int source_rank;      /* that sends the box */
    int destination_rank; /* that receives it */
    uint64_t task_id;    /* both ranks derive it alone, from tensor, destination, box and ordinal */
    uint64_t bytes;      /* in the source's type */
    size_t source_piece; /* in this rank's source layout, if this rank sends */
    size_t destination_piece;     /* in this rank's destination layout, if this rank receives */
    DLDataType source_dtype;      /* of the source's tensor */
    DLDataType destination_dtype; /* of the destination's tensor */
    /* The value map that the run computes at the receiver (BANYAN_PIECE_NEGATIVE_EXP), with or
     * without a transform. 0: none. */
    uint32_t value_map;
    /* 0: from the source. 1: inside a node, from the destination of the sending rank, to which a
     * transfer of stage 0 with the same box and turn brought the elements. Then source_piece is in
     * the sender's destination layout, and both types are the destination's. */
    uint32_t stage;
    uint32_t turn;           /* place in a run with stages, as a fraction of 2^32 */
    DLDataType origin_dtype; /* source_dtype of the transfer of stage 0, which may be this one */
    uint32_t origin_map;     /* its value_map */
    bool between_nodes;      /* the two ranks are on different nodes */
    /* banyan_mxfp8_create quantizes the box, which consists of whole blocks of its destination. */
    bool whole_blocks;
    uint64_t
        wire_bytes; /* that travel: `bytes`, or those that the plan's transform makes of them */
} banyan_transfer;

/* Change of tensor formats during a run; see its struct below. */
typedef struct banyan_transform banyan_transform;

/* Options of banyan_reshard_plan_create. */
typedef struct banyan_reshard_options {
    size_t size;              /* of this struct; BANYAN_RESHARD_OPTIONS_INIT sets it */
    uint64_t min_split_bytes; /* smallest share of a box that replicas split; 0: 256 KiB */
    /* Limit on the staging memory of a rank in a run: dense copies for a service without strides,
     * the memory of transforms, and checksums. A run then goes in several waves. 0: no limit. */
    uint64_t max_staging_bytes;
    bool checksums;                    /* XXH3 of every transfer; the receiver verifies it */
    const banyan_transform *transform; /* of the runs; allows types to differ. NULL: none */
    /* Require that every element of every source tensor arrives in at least one destination.
     * Otherwise INVALID names tensors and boxes. Exceptions are tensors that the rules of a
     * destination's layout skip, and names that match one of `skip_count` patterns. In a pattern,
     * `*` matches any characters except a dot, and `**` any characters. */
    bool require_whole_source;
    const char *const *skip; /* patterns of names; NULL: none */
    size_t skip_count;
    /* Timeout of every wait, here and in runs of the plan (world.h). 0: the world's. Waits on GPUs
     * have the timeout of the copy service. */
    uint64_t timeout_ns;
    /* Let each rank fetch everything that it needs over the network, even if several ranks of its
     * node need it. False: it crosses the network once to each node. */
    bool each_rank_fetches;
} banyan_reshard_options;

#define BANYAN_RESHARD_OPTIONS_INIT BANYAN_INIT(banyan_reshard_options)

/* The transfers of this rank in a reshard. */
typedef struct banyan_reshard_plan banyan_reshard_plan;

/* Plan the transfers from the `source` layouts of all ranks to their `destination` layouts. Pass
 * NULL for a side on which this rank holds nothing. The layouts may be destroyed afterwards.
 * `options` NULL means the defaults; they are equal on all ranks. The caller owns the plan.
 * Collective. The cost of a rank does not grow with the number of ranks, except for the depth of
 * the control plane's trees.
 *
 * Sources. A destination piece is filled from this rank's own source, where that has it. The rest
 * comes from the source's replicas, which share the work evenly. Let R source replicas send a box
 * to D destination replicas. The box is cut into at most R shares. It is cut into fewer if a share
 * would be below min_split_bytes, or if fewer already give 8·R shares for the D replicas together.
 * Each source replica sends ⌊n ÷ R⌋ or ⌈n ÷ R⌉ of all n shares. Cuts run along the slowest
 * dimensions that allow it; along the fastest one, only at multiples of 128 elements of the global
 * tensor.
 *
 * Nodes. In a world of several nodes, a box that several ranks of a node need crosses the network
 * once to this node. Its parts go to different ranks there (stage 0), which pass them on to the
 * others (stage 1). Each rank receives an equal share over the network, to within one part. A node
 * that holds an element in the source takes it from there. Exceptions are boxes that your own
 * transform converts, and MXFP8 pieces that begin or end within a block: each rank fetches its own.
 * The option each_rank_fetches turns this off.
 *
 * Reproducibility. The plan depends on the layouts and nodes alone, never on timing. Adding ranks
 * at the end of the world does not change any task id.
 *
 * Several destinations. One source may feed several destinations with the same tensors in different
 * layouts, such as prefill and decode engines. Make one plan for each; pass only its destination.
 *
 * Coverage. Every element of a destination tensor belongs to a piece, is padding (which every run
 * fills), or is left alone by the layout (banyan_layout_check_as). Otherwise there is no plan.
 *
 * Errors, on every rank; the message names tensor, rank and box:
 * - MISMATCH: global shapes differ, types differ without a transform, a destination lacks the value
 *   map of its source, options differ, or replica sets contradict each other.
 * - NOT_FOUND: some destination tensors are in no source. The message has their number and the
 *   first of them, each with the nearest name of the source. Rank 0 logs the others, up to 1,000.
 * - INVALID: some destination elements are in no source, or the layout does not account for them.
 *   With require_whole_source, some source elements are in no destination. A layout has an error.
 * - NO_MEMORY, and those of the world's waits. */
BANYAN_API banyan_status banyan_reshard_plan_create(const banyan_layout *source,
                                                    const banyan_layout *destination,
                                                    banyan_world *world,
                                                    const banyan_reshard_options *options,
                                                    banyan_reshard_plan **plan);

/* Prove this rank's part of a plan. Everything that it sends must lie in a piece that it holds.
 * Every element of its destination pieces must be in exactly one receive or local copy. Planning
 * has verified that both ends of every transfer agree; layouts are verified to have no overlapping
 * pieces. The first banyan_reshard_execute proves the plan, too. The time is n log n in the
 * transfers. Local, any thread. Errors: INVALID (with tensor and boxes), NO_MEMORY. */
BANYAN_API banyan_status banyan_reshard_plan_prove(const banyan_reshard_plan *plan);

/* Destroy a plan, with the schedules and the memory that its runs kept, before its world is closed.
 * NULL is ignored. Local. */
BANYAN_API void banyan_reshard_plan_destroy(banyan_reshard_plan *plan);

/* Free the schedules and the staging memory that earlier runs kept. Call it before you close their
 * service, if the plan is used again. Local. */
BANYAN_API void banyan_reshard_plan_release(banyan_reshard_plan *plan);

/* ---- transfers of a plan ---- */

/* The results of the functions below live as long as the plan. Any thread. */

/* Return the number of transfers that this rank sends to other ranks. */
BANYAN_API size_t banyan_reshard_plan_send_count(const banyan_reshard_plan *plan);

/* Return send `i`, or NULL if `i` is not below the count. */
BANYAN_API const banyan_transfer *banyan_reshard_plan_send(const banyan_reshard_plan *plan,
                                                           size_t i);

/* Return the number of transfers that this rank receives, including copies from itself. */
BANYAN_API size_t banyan_reshard_plan_recv_count(const banyan_reshard_plan *plan);

/* Return receive `i`, or NULL if `i` is not below the count. */
BANYAN_API const banyan_transfer *banyan_reshard_plan_recv(const banyan_reshard_plan *plan,
                                                           size_t i);

/* Bytes that the transfers of one rank move, as they travel (banyan_transfer.wire_bytes). */
typedef struct banyan_reshard_plan_bytes {
    uint64_t network_sent, network_received; /* to and from ranks of other nodes */
    uint64_t inside_sent, inside_received;   /* to and from other ranks of this node */
    uint64_t passed_on; /* of inside_sent: received over the network before (stage 1) */
    uint64_t local;     /* copied within the rank */
    /* Part of network_received: boxes that other ranks of the node fetch over the network, too,
     * because a transform converts them in a way that they cannot share. */
    uint64_t fetched_again;
} banyan_reshard_plan_bytes;

/* Return the bytes that this rank's transfers move. Any thread. */
BANYAN_API banyan_reshard_plan_bytes
banyan_reshard_plan_count_bytes(const banyan_reshard_plan *plan);

/* Return the number of local tensors of the destination. */
BANYAN_API size_t banyan_reshard_plan_tensor_count(const banyan_reshard_plan *plan);

/* Return local tensor `i` of the destination as runs need it, or NULL if `i` is not below the
 * count. It is the layout's, except that a tensor of persistent buffers has the source's type. */
BANYAN_API const banyan_local_tensor *banyan_reshard_plan_tensor(const banyan_reshard_plan *plan,
                                                                 size_t i);

/* ---- proving a plan ---- */

/* Rule that a finding violates. */
typedef enum banyan_reshard_rule {
    BANYAN_RESHARD_UNWRITTEN = 0, /* no transfer fills some destination elements */
    BANYAN_RESHARD_TWICE,         /* two transfers fill the same destination elements */
    BANYAN_RESHARD_OUTSIDE,       /* a box is not inside its destination piece */
    BANYAN_RESHARD_SOURCE,        /* the source does not hold the elements that it sends */
    BANYAN_RESHARD_UNPAIRED,      /* a send or receive does not have exactly one partner */
    BANYAN_RESHARD_SLOT,          /* a staging slot is used again before it is unpacked */
    BANYAN_RESHARD_STUCK,         /* batches wait in a cycle, or for a batch that never comes */
    BANYAN_RESHARD_MEMORY,        /* more bytes than a slot or a limit allows */
    BANYAN_RESHARD_UNPLANNED,     /* the planner refuses the layouts */
    BANYAN_RESHARD_AGAIN,         /* elements cross the network to a node more than once */
    BANYAN_RESHARD_RULES
} banyan_reshard_rule;

/* Return the rule's name, for example "unwritten". The string is static. Any thread. */
BANYAN_API const char *banyan_reshard_rule_name(banyan_reshard_rule rule);

/* Violation of a rule. */
typedef struct banyan_reshard_finding {
    banyan_reshard_rule rule; /* that is violated */
    int rank;                 /* at which it is violated */
    const char *message;      /* with tensor, box and ranks */
} banyan_reshard_finding;

/* Findings of a check. */
typedef struct banyan_reshard_report banyan_reshard_report;

/* Check two plans of one case: the transfers of the case, and Banyan's plan of its layouts with
 * `options` (NULL: the defaults). In both, every destination element must be written exactly once,
 * with the right element of the global tensor, by a rank that holds it. In Banyan's plan, every
 * receive must also have exactly one send of the same box and task id. The copy pipeline, with
 * slots of `slot_bytes` (0: 512 KiB), must not use a slot again before it is unpacked. With nodes
 * of `ranks_per_node` ranks, in rank order (0: one node), elements cross the network to a node
 * once, unless options->each_rank_fetches is set. This process plans all ranks. BANYAN_OK means
 * that the check is complete, with or without findings. The caller owns the report. Any thread.
 * Errors: INVALID (a layout is wrong by itself, or ranks_per_node is negative), NO_MEMORY. */
BANYAN_API banyan_status banyan_reshard_case_check(const banyan_megatron_case *loaded,
                                                   const banyan_reshard_options *options,
                                                   int ranks_per_node, uint64_t slot_bytes,
                                                   banyan_reshard_report **report);

/* Destroy a report. NULL is ignored. */
BANYAN_API void banyan_reshard_report_destroy(banyan_reshard_report *report);

/* Return the number of findings, of which there are at most 100 for each rule. Any thread. */
BANYAN_API size_t banyan_reshard_report_count(const banyan_reshard_report *report);

/* Return finding `i`, in the order of discovery, or NULL if `i` is not below the count. It lives as
 * long as the report. Any thread. */
BANYAN_API const banyan_reshard_finding *
banyan_reshard_report_finding(const banyan_reshard_report *report, size_t i);

/* Set `*text` to the findings: for people, or as one JSON object (rule, level, rank, message). The
 * text calls the case `name`. Free it with free(). Errors: NO_MEMORY. Any thread. */
BANYAN_API banyan_status banyan_reshard_report_print(const banyan_reshard_report *report,
                                                     const char *name, bool json, char **text);

/* ---- planning for worlds that do not exist ---- */

/* Cost of planning at one rank. */
typedef struct banyan_reshard_plan_cost {
    int rank;             /* in the sampled world */
    double seconds;       /* processor time of the rank, without its layouts */
    double owner_seconds; /* part of `seconds`: the directory entries that the rank owns */
    double prove_seconds; /* in addition: banyan_reshard_plan_prove */
    uint64_t bytes; /* peak memory of layouts, planner, directory, messages and plan together */
    uint64_t owner_bytes;    /* of the rank's part of the directory */
    uint64_t transfers;      /* sent, received and copied */
    uint64_t transfer_bytes; /* received and copied */
} banyan_reshard_plan_cost;

/* Description of a world to plan. */
typedef struct banyan_reshard_sample_world {
    int world_size; /* number of ranks */
    /* Add everything that `rank` holds to two empty layouts. It may be called several times for a
     * rank. */
    banyan_status (*layouts)(void *context, int rank, banyan_layout *source,
                             banyan_layout *destination);
    /* If not NULL: receive the progress, `done` of `total` steps. */
    void (*progress)(void *context, uint64_t done, uint64_t total);
    void *context; /* passed to both functions */
    /* Number of ranks of each node, in rank order; the last node may have fewer. 0: one node. */
    int ranks_per_node;
} banyan_reshard_sample_world;

/* Plan a world of any size in this process, with the planner of a real world. Every rank describes
 * its tensors and asks about the others, so the owners of the directory do all their work. The
 * `count` ranks in `ranks` complete their plans; costs[i] is the cost at rank ranks[i]. Memory is
 * measured as the allocation of this process, so no other thread may allocate meanwhile. `options`
 * NULL means the defaults. Any thread. Errors: those of banyan_reshard_plan_create and
 * banyan_reshard_plan_prove at any rank, and INVALID (the world size exceeds BANYAN_MAX_RANKS). */
BANYAN_API banyan_status banyan_reshard_plan_sample(const banyan_reshard_sample_world *world,
                                                    const banyan_reshard_options *options,
                                                    const int *ranks, int count,
                                                    banyan_reshard_plan_cost *costs);

/* ---- tensor sets ---- */

/* State of the data in a tensor set. */
typedef enum banyan_tensors_state {
    BANYAN_TENSORS_EMPTY = 0, /* no run has filled the set */
    BANYAN_TENSORS_TORN,      /* a run is active, or the last run failed */
    BANYAN_TENSORS_WHOLE      /* the set holds the version that banyan_tensors_version returns */
} banyan_tensors_state;

/* The memory of a layout's local tensors: DLTensors in the layout's order, with any strides. */
typedef struct banyan_tensors banyan_tensors;

/* Make a set of `count` tensors, one for each local tensor of the layout. Shapes and strides are
 * copied. The data belongs to the caller and must outlive the set. Persistent buffers may have any
 * type (banyan_reshard_plan_tensor returns the type that runs need). Local. Errors: INVALID (a
 * shape or type differs from the layout's; the message names the tensor; or the layout's error),
 * NO_MEMORY. */
BANYAN_API banyan_status banyan_tensors_create(const banyan_layout *layout, const DLTensor *tensors,
                                               size_t count, banyan_tensors **set);

/* Make a set with its own memory for a layout (NULL: no tensors). The memory is dense and zeroed,
 * and tensors are aligned to 256 bytes. With `world`, the memory is symmetric, so that peers access
 * it in place, and the call is collective. With `world` NULL, it is ordinary memory, and the call
 * is local. Errors: the layout's, NO_MEMORY, SYSTEM. */
BANYAN_API banyan_status banyan_tensors_alloc(const banyan_layout *layout, banyan_world *world,
                                              banyan_tensors **set);

/* As banyan_tensors_alloc, for the destination of a plan, with the types of
 * banyan_reshard_plan_tensor. */
BANYAN_API banyan_status banyan_tensors_alloc_planned(const banyan_reshard_plan *plan,
                                                      banyan_world *world, banyan_tensors **set);

/* As banyan_tensors_alloc, on a GPU of this rank. Errors also: UNSUPPORTED (this build or machine
 * has no such device). */
BANYAN_API banyan_status banyan_tensors_alloc_on(const banyan_layout *layout, banyan_world *world,
                                                 DLDevice device, banyan_tensors **set);

/* Make a set with dense zeroed memory on a GPU, of which a subscription can have a shadow (the
 * option `shadow` in publish.h). Other processes cannot map the memory; they reach it by copies of
 * the owner's. Local. Errors: the layout's, NO_MEMORY, UNSUPPORTED (host memory; no such device).
 */
BANYAN_API banyan_status banyan_tensors_alloc_swappable(const banyan_layout *layout,
                                                        DLDevice device, banyan_tensors **set);

/* As banyan_tensors_alloc_planned, on a GPU of this rank. Errors also: UNSUPPORTED (this build or
 * machine has no such device). */
BANYAN_API banyan_status banyan_tensors_alloc_planned_on(const banyan_reshard_plan *plan,
                                                         banyan_world *world, DLDevice device,
                                                         banyan_tensors **set);

/* Destroy a set, and its own memory. No run may use it. NULL is ignored. Local. */
BANYAN_API void banyan_tensors_destroy(banyan_tensors *set);

/* Return the number of tensors. Any thread. */
BANYAN_API size_t banyan_tensors_count(const banyan_tensors *set);

/* Return tensor `i`, in the layout's order, or NULL if `i` is not below the count. It lives as long
 * as the set. Any thread. */
BANYAN_API const DLTensor *banyan_tensors_get(const banyan_tensors *set, size_t i);

/* Return the state of the set. Any thread. */
BANYAN_API banyan_tensors_state banyan_tensors_get_state(const banyan_tensors *set);

/* Return the version of the last run that succeeded, or 0 if there was none. Any thread. */
BANYAN_API uint64_t banyan_tensors_version(const banyan_tensors *set);

/* ---- run ---- */

/* Fill `destination` from `source`; pass NULL for a side on which this rank holds nothing.
 * `transform` is the one of the plan's options, NULL if the plan has none. Collective.
 *
 * State. The destination is TORN from the start of the run. After BANYAN_OK on all ranks it is
 * WHOLE, with a version on which all ranks agreed. After a failure it stays TORN; every rank
 * receives the error, and you may run again. A TIMEOUT at the gate (world.h) does not change the
 * state.
 *
 * Service. `service` needs submit_send, submit_recv, run and close only. A service that accepts
 * strides moves boxes straight to their place. A service that keeps schedules plans in the first
 * run only.
 *
 * Cost. The first run with these tensors and this service prepares. The plan keeps the schedules
 * and the staging memory for later runs, until banyan_reshard_plan_release. A later run costs the
 * transfers and agreements of the world: one before the run, and one after each of its waves
 * (max_staging_bytes). A service that keeps no schedules costs one more.
 *
 * GPUs. With a service on a GPU (banyan_copy_options), source and destination are in its memory.
 * The agreements are the host's and do not wait for the GPU. The call returns when all transfers
 * are enqueued in `stream`. The destination is then WHOLE for everything that the stream does next.
 * banyan_copy_service_check and the next run return the error of a run that the GPU could not
 * finish. After the first run, a run may be captured in a CUDA graph. A graph launch moves the
 * tensors again and does not change the version. The transforms of banyan_cast_create and
 * banyan_mxfp8_create cost no pass of their own there; docs/gpu.md lists the blocks and scales that
 * they accept.
 *
 * Errors, on every rank:
 * - INVALID: the tensors are not the plan's. Types differ without a transform. A box cannot be cut
 *   to fit max_staging_bytes. The destination overlaps memory that is read as a source, unless a
 *   local copy finds it in its place already. Two tensors of the destination share memory, unless
 *   both hold one box of one global tensor there (tied weights).
 * - UNSUPPORTED, on a GPU: blocks or scales that the transform does not accept, other transforms,
 *   or checksums.
 * - CORRUPT: a checksum is wrong. The message has tensor, box and both ranks.
 * - NO_MEMORY, and those of the service and of the world's waits. */
BANYAN_API banyan_status banyan_reshard_execute(banyan_reshard_plan *plan, banyan_tensors *source,
                                                banyan_tensors *destination,
                                                banyan_copy_service *service, banyan_world *world,
                                                const banyan_transform *transform, void *stream);

/* Start a run, as banyan_reshard_execute on the host, on its own thread. Wait for `*request`
 * (core.h) before anything else uses the world or the service. Collective. Errors: INVALID,
 * NO_MEMORY, SYSTEM. The last two end the world for all ranks, since other ranks may have started
 * the run. The request has the errors of the run. */
BANYAN_API banyan_status banyan_reshard_start(banyan_reshard_plan *plan, banyan_tensors *source,
                                              banyan_tensors *destination,
                                              banyan_copy_service *service, banyan_world *world,
                                              const banyan_transform *transform,
                                              banyan_request **request);

/* ---- transforms ---- */

/* A transfer that a transform may convert, as one of its ends sees it. */
typedef struct banyan_transform_task {
    const banyan_transfer *transfer; /* that is converted */
    const DLTensor *local;  /* view of the box, in the order of the global tensor's dimensions */
    const DLTensor *whole;  /* the local tensor that contains the view */
    const char *local_name; /* name of `whole` in its layout */
    const int64_t *local_start; /* start of the view, one for each dimension of `whole` */
    /* Dimension of `whole` along which each dimension of `local` runs. BANYAN_NO_DIM: none; its
     * extent is 1. */
    const int *dim_map;
} banyan_transform_task;

/* Maximum number of tensors that a transform sends for one transfer. */
#define BANYAN_TRANSFORM_MAX_PARTS 4

/* ---- transforms of your own ---- */

/* A transform changes the format of tensors during a run. should_transform selects transfers;
 * sender and receiver both call it and must obtain the same answer. For each of these transfers,
 * prepare_send gives the tensors to send (parts 0, 1, …), prepare_recv gives equally many to
 * receive into, and finalize_recv makes the destination of them. A part may point into the local
 * tensor, or into memory that the callback takes from `scratch`. Its shape and strides must live as
 * long as its data.
 *
 * Each run calls prepare_send and prepare_recv once for each transfer. While the first run
 * prepares, it calls `begin` and all of them once more, to learn how much scratch they take. From
 * then on, memory that is taken in the same order has the same address in every run, and parts must
 * not move. With max_staging_bytes, a transfer may come as several tasks, whose transfers are parts
 * of its box. */

/* Memory for the parts of a transform's tasks. */
typedef struct banyan_transform_scratch banyan_transform_scratch;

/* Take memory for one task, aligned to 64 bytes. It is valid until the parts are sent, or until
 * finalize_recv has returned. Return NULL, with the error set, if out of memory. Only from the
 * callbacks of a transform. */
BANYAN_API void *banyan_transform_scratch_take(banyan_transform_scratch *scratch, size_t bytes);

/* Account for `bytes` of memory that the transform is about to allocate for a tensor and keeps for
 * the whole run, for example to assemble the tensor from several tasks. Call it once for each
 * `begin`, in a prepare callback. The memory counts against max_staging_bytes for the whole run.
 * `what` is the tensor's name. Errors: INVALID (it does not fit; the message has `what` and both
 * numbers). */
BANYAN_API banyan_status banyan_transform_scratch_keep(banyan_transform_scratch *scratch,
                                                       const char *what, uint64_t bytes);

/* A transform. transform.h has built-in ones. */
struct banyan_transform {
    size_t size;      /* of this struct */
    const char *name; /* for messages */
    void *context;    /* passed to every function */
    /* True if the transform converts this transfer. */
    bool (*should_transform)(void *context, const banyan_transfer *transfer);
    /* Begin a run, before its first prepare call, on every rank. May be NULL. */
    banyan_status (*begin)(void *context);
    /* Set `parts` and `*part_count` (at most BANYAN_TRANSFORM_MAX_PARTS) to the tensors to send. */
    banyan_status (*prepare_send)(void *context, const banyan_transform_task *task,
                                  banyan_transform_scratch *scratch, DLTensor *parts,
                                  int *part_count);
    /* Set `parts` and `*part_count` to the tensors to receive into. */
    banyan_status (*prepare_recv)(void *context, const banyan_transform_task *task,
                                  banyan_transform_scratch *scratch, DLTensor *parts,
                                  int *part_count);
    /* Convert the received parts into the destination. */
    banyan_status (*finalize_recv)(void *context, const banyan_transform_task *task,
                                   const DLTensor *parts, int part_count);
    /* End a run that has not failed, after its last finalize_recv, on every rank. May be NULL. */
    banyan_status (*finish)(void *context);
    /* Called before finish for each local tensor of the destination with padding, which the run has
     * filled. Update what the transform keeps beside the tensor, such as scales. A tensor may be
     * all padding and have no task. May be NULL. */
    banyan_status (*finish_padding)(void *context, const char *local_name, const DLTensor *whole);
};

#ifdef __cplusplus
}
#endif
#endif
