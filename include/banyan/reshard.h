/* Banyan: moving a model from one layout to another.
 *
 * Layout → plan → run. Planning is collective and happens once; each rank derives its own
 * transfers, alone, from what the directory tells about its own tensors. Running moves the bytes
 * through a copy service, any number of times.
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

/* A box that one rank sends and another receives, as one of the two sees it. */
typedef struct banyan_transfer {
    const char *name; /* of the global tensor */
    banyan_box box;   /* in global coordinates */
    int source_rank;
    int destination_rank;
    uint64_t task_id;         /* derived alone on both sides: (tensor, destination, box, ordinal) */
    uint64_t bytes;           /* in the source's type */
    size_t source_piece;      /* of this rank's source layout, when it is the source */
    size_t destination_piece; /* of this rank's destination layout, when it is the destination */
    DLDataType source_dtype;
    DLDataType destination_dtype;
    /* The value map that the run computes at the receiver (BANYAN_PIECE_NEGATIVE_EXP), whatever
     * its transform; 0: none. */
    uint32_t value_map;
} banyan_transfer;

typedef struct banyan_transform banyan_transform;

typedef struct banyan_reshard_options {
    size_t size;              /* of this struct; BANYAN_RESHARD_OPTIONS_INIT sets it */
    uint64_t min_split_bytes; /* replicas do not share a box into shares below this; 0: 256 KiB */
    /* What a rank's run may take for tensors on their way: dense copies for a service that takes no
     * strides, what transforms take and keep, checksums. It then goes in waves. 0: no bound. */
    uint64_t max_staging_bytes;
    bool checksums;                    /* XXH3 of every transfer, verified at the receiver */
    const banyan_transform *transform; /* the one the runs will use: allows dtypes to differ */
    /* Every element of every source tensor must arrive in at least one destination; INVALID names
     * tensors and boxes that no destination takes. Tensors that the rules of a destination's layout
     * skip need not arrive, nor those whose names fit one of `skip_count` patterns (`*`: any run of
     * characters without a dot; `**`: any run). */
    bool require_whole_source;
    const char *const *skip;
    size_t skip_count;
} banyan_reshard_options;

#define BANYAN_RESHARD_OPTIONS_INIT BANYAN_INIT(banyan_reshard_options)

typedef struct banyan_reshard_plan banyan_reshard_plan;

/* Plan the moves from all ranks' `source` to all ranks' `destination`. Either, or both, may be NULL
 * at a rank that holds none. The layouts may be destroyed afterwards. Collective over `world`, with
 * equal options on all ranks; nothing in it grows with the number of ranks but the depth of the
 * control plane's trees.
 *
 * Every destination piece is filled: from this rank's own source where it has it, else from the
 * source's replicas, which share it evenly: a box that R source replicas send to D destination
 * replicas is cut into up to R shares, fewer when it would be cut below min_split_bytes or when
 * 8·R shares for the D together are reached with fewer; of all its shares, each replica sends
 * ⌊n ÷ R⌋ or ⌈n ÷ R⌉. A box is cut along the slowest dimensions that allow it, along the fastest
 * one only at multiples of 128 elements of the global tensor. The plan depends on the layouts
 * only, never on timing. Ranks that are added at the end of the world change no task id.
 *
 * One source may feed several destinations that hold the same tensors differently (prefill and
 * decode engines): one plan each, with the other destination's layout left out.
 *
 * Every element of a destination tensor is accounted for, or there is no plan: it belongs to a
 * piece, it is padding, which every run fills, or the layout leaves it alone
 * (banyan_layout_check_as).
 *
 * Errors come to every rank: MISMATCH (global shapes differ; dtypes differ and nothing transforms
 * them; options differ; replica sets contradict each other), NOT_FOUND (destination tensors that
 * no source has: their number, the first ten, and the nearest name that the source has), INVALID
 * (elements that no source holds, that the destination's layout does not account for, or, with
 * require_whole_source, that no destination takes; a layout's own error); the sentence names
 * tensor, rank and box. */
BANYAN_API banyan_status banyan_reshard_plan_create(const banyan_layout *source,
                                                    const banyan_layout *destination,
                                                    banyan_world *world,
                                                    const banyan_reshard_options *options,
                                                    banyan_reshard_plan **plan);
/* Prove this rank's part of a plan: whatever it sends lies in a piece that it holds, and every
 * element of its destination pieces is in exactly one receive or local copy. (That both ends of
 * every transfer agree is seen to when a plan is made, and that no two pieces share memory when a
 * layout is.) Before a first run banyan_reshard_execute does it, too. Local, any thread; n log n in
 * the transfers. Errors: INVALID, naming tensor and boxes; NO_MEMORY. */
BANYAN_API banyan_status banyan_reshard_plan_prove(const banyan_reshard_plan *plan);
/* Drops what the runs have kept, too. Local. NULL is ignored. */
BANYAN_API void banyan_reshard_plan_destroy(banyan_reshard_plan *plan);

/* Drop the schedules and the staging memory that earlier runs have kept: before the service that
 * they were made with is closed while the plan is to live on. Local. */
BANYAN_API void banyan_reshard_plan_release(banyan_reshard_plan *plan);

/* Transfers that this rank sends, receives, or copies to itself (listed once, among the receives):
 * as long as the plan lives, from any thread. NULL for an `i` that does not exist. */
BANYAN_API size_t banyan_reshard_plan_send_count(const banyan_reshard_plan *plan);
BANYAN_API const banyan_transfer *banyan_reshard_plan_send(const banyan_reshard_plan *plan,
                                                           size_t i);
BANYAN_API size_t banyan_reshard_plan_recv_count(const banyan_reshard_plan *plan);
BANYAN_API const banyan_transfer *banyan_reshard_plan_recv(const banyan_reshard_plan *plan,
                                                           size_t i);

/* The destination's local tensors as runs need them: the layout's, but a tensor whose pieces are
 * persistent buffers has the type that the source has it in. NULL for an `i` that does not exist.
 */
BANYAN_API size_t banyan_reshard_plan_tensor_count(const banyan_reshard_plan *plan);
BANYAN_API const banyan_local_tensor *banyan_reshard_plan_tensor(const banyan_reshard_plan *plan,
                                                                 size_t i);

/* ---- proving a plan ---- */

typedef enum banyan_reshard_rule {
    BANYAN_RESHARD_UNWRITTEN = 0, /* destination elements that no transfer fills */
    BANYAN_RESHARD_TWICE,         /* destination elements that two transfers fill */
    BANYAN_RESHARD_OUTSIDE,       /* a box that is not in the destination piece it is to fill */
    BANYAN_RESHARD_SOURCE,        /* the source does not hold what it is to send */
    BANYAN_RESHARD_UNPAIRED,      /* a send and a receive that are not each other's only partner */
    BANYAN_RESHARD_SLOT,          /* a staging slot that is used again before it is unpacked */
    BANYAN_RESHARD_STUCK,         /* batches that wait for each other, or for nobody */
    BANYAN_RESHARD_MEMORY,        /* more bytes than a slot or a bound allows */
    BANYAN_RESHARD_UNPLANNED,     /* no plan can be made of the layouts */
    BANYAN_RESHARD_RULES
} banyan_reshard_rule;

/* "unwritten", "twice", … Any thread. */
BANYAN_API const char *banyan_reshard_rule_name(banyan_reshard_rule rule);

typedef struct banyan_reshard_finding {
    banyan_reshard_rule rule;
    int rank;
    const char *message; /* a sentence with tensor, box and ranks */
} banyan_reshard_finding;

typedef struct banyan_reshard_report banyan_reshard_report;

/* Two plans of one case: its own transfers, and what Banyan plans of its layouts with `options`
 * (NULL: none). Of both, every destination element is written exactly once, with the element of the
 * global tensor that belongs there, by a rank that holds it; of Banyan's, also that every receive
 * has exactly one send of the same box and task id, and that the copy pipeline, with slots of
 * `slot_bytes` (0: 512 KiB), uses no slot before it is unpacked. All ranks are planned in this
 * process. Errors: INVALID (a layout that is wrong by itself), NO_MEMORY. */
BANYAN_API banyan_status banyan_reshard_case_check(const banyan_megatron_case *loaded,
                                                   const banyan_reshard_options *options,
                                                   uint64_t slot_bytes,
                                                   banyan_reshard_report **report);

/* NULL is ignored. */
BANYAN_API void banyan_reshard_report_destroy(banyan_reshard_report *report);
/* Of each rule the first 100. */
BANYAN_API size_t banyan_reshard_report_count(const banyan_reshard_report *report);
/* In the order in which they were found; as long as the report lives. NULL for an `i` that does not
 * exist. */
BANYAN_API const banyan_reshard_finding *
banyan_reshard_report_finding(const banyan_reshard_report *report, size_t i);
/* As text for people, or as one JSON object (rule, level, rank, message). To be freed with free().
 */
BANYAN_API banyan_status banyan_reshard_report_print(const banyan_reshard_report *report,
                                                     const char *name, bool json, char **text);

/* ---- planning for worlds that are not there ---- */

/* What one rank's planning costs. */
typedef struct banyan_plan_cost {
    int rank;
    double seconds;       /* of a processor: all that the rank does, its layouts left out */
    double owner_seconds; /* of these, for the entries of the directory that lie at it */
    double prove_seconds; /* besides: what banyan_reshard_plan_prove takes */
    uint64_t bytes; /* most memory held at once: layouts, planner, directory, messages, plan */
    uint64_t owner_bytes;    /* of its part of the directory */
    uint64_t transfers;      /* sent, received and copied */
    uint64_t transfer_bytes; /* received and copied */
} banyan_plan_cost;

/* What the ranks of an imagined world hold, and who wants to know how far the work is. */
typedef struct banyan_plan_world {
    int world_size;
    /* Add what `rank` holds to two empty layouts. Called more than once for a rank. */
    banyan_status (*layouts)(void *context, int rank, banyan_layout *source,
                             banyan_layout *destination);
    /* Of `total` ranks' steps, `done` are done. May be NULL. */
    void (*progress)(void *context, uint64_t done, uint64_t total);
    void *context;
} banyan_plan_world;

/* Plan a world of any size in this process, by the code that a real one runs: every rank describes
 * what it holds and asks about the rest, so that the directory's owners have all their work, and
 * `ranks[0 … count)` plan to the end. costs[i] is what the planning cost rank ranks[i]. Any thread;
 * the memory is measured as what this process has allocated, so that no other thread may allocate
 * meanwhile. Errors are those of banyan_reshard_plan_create and _prove, from any rank that meets
 * one, and INVALID for more than BANYAN_MAX_RANKS. */
BANYAN_API banyan_status banyan_reshard_plan_sample(const banyan_plan_world *world,
                                                    const banyan_reshard_options *options,
                                                    const int *ranks, int count,
                                                    banyan_plan_cost *costs);

/* ---- tensor sets ---- */

typedef enum banyan_tensors_state {
    BANYAN_TENSORS_EMPTY = 0, /* never filled by a run */
    BANYAN_TENSORS_TORN,      /* a run is in flight, or one has failed */
    BANYAN_TENSORS_WHOLE      /* holds the version that banyan_tensors_version gives */
} banyan_tensors_state;

/* The memory of a layout's local tensors: DLTensors in the layout's order, with any strides. Shape
 * and strides are copied, the data is the caller's. */
typedef struct banyan_tensors banyan_tensors;

/* INVALID names the tensor whose shape or type is not the layout's; persistent buffers may have any
 * type (banyan_reshard_plan_tensor says which one the runs need). Local. */
BANYAN_API banyan_status banyan_tensors_create(const banyan_layout *layout, const DLTensor *tensors,
                                               size_t count, banyan_tensors **set);
/* Allocate dense memory for the whole layout (NULL: no tensors), zeroed, tensors aligned to 256
 * bytes: symmetric when `world` is given (collective), so that peers reach it in one pass, else
 * ordinary (local). */
BANYAN_API banyan_status banyan_tensors_alloc(const banyan_layout *layout, banyan_world *world,
                                              banyan_tensors **set);
/* The same for the destination of a plan, with the types of banyan_reshard_plan_tensor. */
BANYAN_API banyan_status banyan_tensors_alloc_planned(const banyan_reshard_plan *plan,
                                                      banyan_world *world, banyan_tensors **set);
/* Both on a device of this rank's, whose memory peers then reach over its links. */
BANYAN_API banyan_status banyan_tensors_alloc_on(const banyan_layout *layout, banyan_world *world,
                                                 DLDevice device, banyan_tensors **set);
BANYAN_API banyan_status banyan_tensors_alloc_planned_on(const banyan_reshard_plan *plan,
                                                         banyan_world *world, DLDevice device,
                                                         banyan_tensors **set);
/* Local; a symmetric set must not be in use by a run. NULL is ignored. */
BANYAN_API void banyan_tensors_destroy(banyan_tensors *set);
/* What was bound or allocated, in the layout's order, from any thread; NULL for an `i` that does
 * not exist. */
BANYAN_API size_t banyan_tensors_count(const banyan_tensors *set);
BANYAN_API const DLTensor *banyan_tensors_get(const banyan_tensors *set, size_t i);

/* Any thread. The version is that of the last good run. */
BANYAN_API banyan_tensors_state banyan_tensors_get_state(const banyan_tensors *set);
BANYAN_API uint64_t banyan_tensors_version(const banyan_tensors *set);

/* ---- run ---- */

/* Fill `destination` from `source` (NULL at a rank that has none). Of `service` only submit_send,
 * submit_recv, run and close are needed; a service that takes strides moves boxes straight to their
 * place, one that keeps schedules plans the first run only. `transform` NULL: none, else the
 * plan's. Collective. After BANYAN_OK the destination reads WHOLE, with a version number that all
 * ranks agreed on; from the start until then, and after a failure, TORN. An error comes to every
 * rank; a failed run may be run again. CORRUPT (with checksums) names tensor, box and both ranks.
 *
 * The first run with these tensors and this service prepares: the plan keeps the service's
 * schedules and its staging memory for later runs, until banyan_reshard_plan_release. A later run
 * costs the move and two agreements over the world, one before it and one after (for each wave,
 * when max_staging_bytes cuts it into several); a service that keeps no schedules costs one more.
 *
 * With a service on a GPU (banyan_copy_options) source and destination lie in its memory. The
 * agreements are still the host's and do not wait for the GPU: the call returns when all moves are
 * queued in `stream`, and the destination reads WHOLE from then on, which holds for whatever the
 * stream does next. A run that the GPU could not finish is told by banyan_copy_service_check and by
 * the next run. Once it has prepared, a run may be captured in a CUDA graph; replays move the
 * tensors again and leave the version alone. The transforms of banyan_cast_create and
 * banyan_mxfp8_create cost no pass of their own there; docs/gpu.md says which blocks and scales
 * they take. UNSUPPORTED: what they do not take, other transforms, and checksums.
 *
 * INVALID, on every rank: tensors that are not the plan's, types that differ and no transform for
 * them, a box that cannot be cut to fit max_staging_bytes, a destination that lies over memory that
 * is read as a source (unless a local copy finds it in its place already). */
BANYAN_API banyan_status banyan_reshard_execute(banyan_reshard_plan *plan, banyan_tensors *source,
                                                banyan_tensors *destination,
                                                banyan_copy_service *service, banyan_world *world,
                                                const banyan_transform *transform, void *stream);

/* Start the same; nothing else may use the world or the service until the request is waited for. */
BANYAN_API banyan_status banyan_reshard_start(banyan_reshard_plan *plan, banyan_tensors *source,
                                              banyan_tensors *destination,
                                              banyan_copy_service *service, banyan_world *world,
                                              const banyan_transform *transform,
                                              banyan_request **request);

/* ---- transforms ---- */

/* One end's view of a transfer that a transform may take over. */
typedef struct banyan_transform_task {
    const banyan_transfer *transfer;
    const DLTensor *local;  /* view of the box, in the order of the global tensor's dimensions */
    const DLTensor *whole;  /* the whole local tensor the view lies in */
    const char *local_name; /* that tensor's name in its layout */
    const int64_t *local_start; /* where the view starts in it; as many as whole has dimensions */
    /* Dimension of whole along which each dimension of local runs; BANYAN_NO_DIM: none, and its
     * extent is 1. */
    const int *dim_map;
} banyan_transform_task;

#define BANYAN_TRANSFORM_MAX_PARTS 4

/* Changes the format of tensors on their way. For each transfer that should_transform accepts
 * (asked at both ends, which must answer alike), prepare_send gives the tensors that travel (parts
 * 0, 1, …), prepare_recv gives equally many to receive into, and finalize_recv makes the
 * destination of them. A part may point into the local tensor, or into memory that the callback
 * takes from `scratch`; its shape and strides must last as long as its data.
 *
 * prepare_send and prepare_recv come once a run for each transfer, and once more, with `begin`
 * before, when a run prepares: what they take from the scratch is so learnt. From then on scratch
 * that is taken in the same order has the same address in every run, and parts must not move. With
 * max_staging_bytes a transfer may come as several tasks, whose transfers are parts of its box. */
typedef struct banyan_transform_scratch banyan_transform_scratch;

/* Memory for one task, aligned to 64 bytes, until its parts are sent or its finalize_recv has
 * returned. NULL, with the error set, when memory ran out. */
BANYAN_API void *banyan_transform_scratch_take(banyan_transform_scratch *scratch, size_t bytes);

/* Account for memory that the transform is about to allocate for a tensor and keeps for all of a
 * run, as when it puts the tensor together from several tasks: once a `begin`, in a prepare call.
 * It counts against max_staging_bytes for the whole run. INVALID when it does not fit: `what`, a
 * tensor's name, and both numbers are in the sentence. */
BANYAN_API banyan_status banyan_transform_scratch_keep(banyan_transform_scratch *scratch,
                                                       const char *what, uint64_t bytes);

struct banyan_transform {
    size_t size;
    const char *name;
    void *context;
    bool (*should_transform)(void *context, const banyan_transfer *transfer);
    /* Before the first prepare call of a run, on every rank. May be NULL. */
    banyan_status (*begin)(void *context);
    banyan_status (*prepare_send)(void *context, const banyan_transform_task *task,
                                  banyan_transform_scratch *scratch, DLTensor *parts,
                                  int *part_count);
    banyan_status (*prepare_recv)(void *context, const banyan_transform_task *task,
                                  banyan_transform_scratch *scratch, DLTensor *parts,
                                  int *part_count);
    banyan_status (*finalize_recv)(void *context, const banyan_transform_task *task,
                                   const DLTensor *parts, int part_count);
    /* After the last finalize_recv of a run that has not failed, on every rank. May be NULL. */
    banyan_status (*finish)(void *context);
    /* Before finish, for each local tensor of the destination that has padding, which has been
     * filled: what the transform keeps beside the tensor is to be made to fit. A tensor may be all
     * padding, and then no task tells of it. May be NULL. */
    banyan_status (*finish_padding)(void *context, const char *local_name, const DLTensor *whole);
};

#ifdef __cplusplus
}
#endif
#endif
