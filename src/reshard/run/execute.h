/* State that a plan keeps between runs, and the steps of a run. */
#ifndef RESHARD_RUN_EXECUTE_H
#define RESHARD_RUN_EXECUTE_H

#include "copy/strided/strided.h"
#include "core/containers.h"
#include "reshard/planner/plan.h"
#include "reshard/run/memory.h"

/* A tensor that travels: its local view, and the dense memory it travels from or to where the
 * service takes no strides. */
typedef struct execution_part {
    DLTensor tensor;
    int64_t elems;
    void *staged;   /* NULL: the tensor itself travels */
    uint32_t flags; /* of its operation */
} execution_part;

/* One end of a transfer, or of a block of it when the transfer is cut to fit the staging memory. */
typedef struct execution_end {
    const banyan_transfer *transfer;
    banyan_box box;
    uint32_t block;
    int peer;
    bool is_send, transformed;
    bool on_the_way;     /* the device's service transforms it: nothing is staged */
    uint64_t position;   /* on the line that waves divide into intervals; identical at both ends */
    uint64_t need_bytes; /* of staging */
    size_t wave;
    int64_t shape[BANYAN_MAX_DIMS], strides[BANYAN_MAX_DIMS];
    DLTensor view; /* of the box, within the local tensor */
    execution_part *parts;
    int part_count; /* 0: not staged yet */
} execution_end;

/* Sends and receives of one batch. */
typedef struct execution_wave {
    execution_end **ends; /* sends, then receives, by peer, task id and block */
    size_t end_count;
    execution_end *
        *locals; /* moves within this rank: each sending end, followed by its receiving end */
    size_t local_count;
    uint64_t *sums;                 /* with checksums: one per part, in the order of the ends */
    banyan_copy_schedule *schedule; /* NULL: none is kept */
} execution_wave;

typedef struct execution {
    const banyan_reshard_plan *plan;
    banyan_tensors *source, *destination;
    uint64_t source_id, destination_id;
    banyan_copy_service *service;
    void *stream; /* of the current run */
    banyan_world *world;
    const banyan_transform *transform;
    bool takes_strides, keeps_schedules;
    DLDevice device; /* of the service */
    char *fills;     /* on a device: the elements that fill padding; NULL: there is none */
    ARRAY(execution_end) ends;
    ARRAY(execution_end) locals;              /* in pairs */
    execution_end **end_order, **local_order; /* by wave */
    execution_part *parts;
    ARRAY(execution_wave) waves;
    ARRAY(strided_view) paddings;
    arena dims;          /* shapes of tensors that a transform makes on a device */
    uint64_t kept_bytes; /* memory that the transform itself keeps permanently */
    /* With stages: the transfers of stage 0 move in so many waves, and those of stage 1 one wave
     * behind the transfer that they follow. 0: there are no stages. */
    uint64_t turns;
    run_memory arena;
} execution;

/* Prepare the runs of a plan over these tensors and this service. Collective; every rank returns
 * the error. */
banyan_status execution_build(const banyan_reshard_plan *plan, banyan_tensors *source,
                              banyan_tensors *destination, banyan_copy_service *service,
                              banyan_world *world, const banyan_transform *transform,
                              execution **built);
void execution_destroy(execution *run);

/* Return the offset of the i-th padding's element in run->fills. */
size_t execution_fill_offset(const execution *run, size_t i);

/* Move everything once. Collective; every rank returns the error. Takes one agreement per wave, and
 * one more where no schedule is kept yet, or at all. */
banyan_status execution_run(execution *run);

/* Run one wave; `mine` is this rank's status so far. Collective. The returned status is this rank's
 * own, unless `agreed` is set: every rank has it. */
banyan_status execution_run_wave(execution *run, execution_wave *wave, banyan_status mine,
                                 bool *agreed);

/* Prepare the parts of an end, by its transform or, without one, from its view. */
banyan_status execution_prepare_end(execution *run, execution_end *end,
                                    banyan_transform_scratch *scratch, DLTensor *parts,
                                    int *part_count);
banyan_status execution_finalize_end(const execution *run, const execution_end *end,
                                     const DLTensor *parts, int part_count);

/* Choose run->turns, which needs one small collective in a world of several nodes. */
banyan_status execution_count_turns(execution *run);

/* Return a transfer's position on the line, from a hash that is identical at both ends. */
uint64_t execution_position(const execution *run, const banyan_transfer *transfer, uint64_t hash);

/* Cut the line of positions into waves that need no more than the bound, identically at every rank.
 * Assign the ends to them and allocate the staging memory. Collective; every rank returns the
 * error. */
banyan_status execution_plan_waves(execution *run);

/* Return the bytes to set aside for rounding a wave's checksums, which are one piece of staging. */
uint64_t execution_sums_rounding(const execution *run);

/* Return the staging bytes of the largest wave; call it after ends are assigned to waves. */
uint64_t execution_largest_wave(const execution *run);

/* True if two views of this rank are the same elements in the same place. */
bool execution_same_memory(const DLTensor *a, const DLTensor *b);

/* Return the staging bytes that no wave can use. */
uint64_t execution_set_aside(const execution *run);

#endif
