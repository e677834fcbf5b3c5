/* A transform without a run: one local tensor on either side of a global one, cut into boxes that
 * travel by plain copies. */
#ifndef TESTS_RESHARD_SIMULATE_H
#define TESTS_RESHARD_SIMULATE_H

#include "support/test.h"

#include "reshard/transform/object.h"

/* A local tensor that holds all of a global tensor at an offset, dimensions in any order,
 * strided. */
typedef struct sim_side {
    DLTensor whole;
    int64_t shape[BANYAN_MAX_DIMS], strides[BANYAN_MAX_DIMS];
    int64_t offset[BANYAN_MAX_DIMS]; /* of the global tensor's start, in local order */
    int dim_map[BANYAN_MAX_DIMS];
    const char *name;
    size_t memory_bytes;
} sim_side;

/* `permute`: shuffle the dimensions; `pad`: at most this many more elements before and after. */
static inline void sim_side_make(random_state *random, const char *name, DLDataType dtype, int ndim,
                                 const int64_t *shape, bool permute, int64_t pad, sim_side *side)
{
    *side = (sim_side){.name = name};
    for (int d = 0; d < ndim; d++)
        side->dim_map[d] = d;
    for (int d = ndim - 1; permute && d > 0; d--) {
        int other = (int)random_between(random, 0, d), moved = side->dim_map[d];
        side->dim_map[d] = side->dim_map[other];
        side->dim_map[other] = moved;
    }
    for (int g = 0; g < ndim; g++) {
        int d = side->dim_map[g];
        side->offset[d] = random_between(random, 0, pad);
        side->shape[d] = side->offset[d] + shape[g] + random_between(random, 0, pad);
    }
    int64_t stride = 1;
    for (int d = ndim - 1; d >= 0; d--) {
        side->strides[d] = stride;
        stride *= side->shape[d] + random_between(random, 0, 2);
    }
    side->memory_bytes = (size_t)stride * banyan_dtype_bytes(dtype);
    side->whole = (DLTensor){.data = malloc(side->memory_bytes),
                             .device = {kDLCPU, 0},
                             .ndim = ndim,
                             .dtype = dtype,
                             .shape = side->shape,
                             .strides = side->strides};
    memset(side->whole.data, 0xa5, side->memory_bytes);
}

/* The element at a global index. */
static inline void *sim_at(const sim_side *side, const int64_t *index)
{
    int64_t offset = 0;
    for (int g = 0; g < side->whole.ndim; g++) {
        int d = side->dim_map[g];
        offset += (side->offset[d] + index[g]) * side->strides[d];
    }
    return (char *)side->whole.data + offset * (int64_t)banyan_dtype_bytes(side->whole.dtype);
}

typedef struct sim_task {
    banyan_transform_task task;
    banyan_transfer transfer;
    DLTensor view;
    int64_t shape[BANYAN_MAX_DIMS], strides[BANYAN_MAX_DIMS], local_start[BANYAN_MAX_DIMS];
    int dim_map[BANYAN_MAX_DIMS];
} sim_task;

/* `stacked`: the global tensor has an additional first dimension, of which the box has one
 * index. */
static inline void sim_task_make(const sim_side *side, const banyan_transfer *transfer,
                                 bool stacked, sim_task *made)
{
    *made = (sim_task){.transfer = *transfer};
    banyan_box *box = &made->transfer.box;
    if (stacked) {
        *box = (banyan_box){transfer->box.ndim + 1, {3}, {1}};
        made->shape[0] = 1;
        made->dim_map[0] = BANYAN_NO_DIM;
    }
    for (int g = 0; g < transfer->box.ndim; g++) {
        int d = side->dim_map[g], at = g + stacked;
        box->start[at] = transfer->box.start[g];
        box->extent[at] = made->shape[at] = transfer->box.extent[g];
        made->strides[at] = side->strides[d];
        made->dim_map[at] = d;
        made->local_start[d] = side->offset[d] + transfer->box.start[g];
    }
    made->view = (DLTensor){.data = sim_at(side, transfer->box.start),
                            .device = {kDLCPU, 0},
                            .ndim = box->ndim,
                            .dtype = side->whole.dtype,
                            .shape = made->shape,
                            .strides = made->strides};
    made->task = (banyan_transform_task){.transfer = &made->transfer,
                                         .local = &made->view,
                                         .whole = &side->whole,
                                         .local_name = side->name,
                                         .local_start = made->local_start,
                                         .dim_map = made->dim_map};
}

/* All boxes of one run. */
typedef struct sim_run {
    const sim_side *source, *destination;
    banyan_transform *sender, *receiver;
    uint64_t wire_bytes;
    int part_count; /* of the last task */
    bool stacked;
} sim_run;

static inline banyan_status sim_move(sim_run *run, const banyan_box *box)
{
    banyan_transfer transfer = {.name = "global.w",
                                .box = *box,
                                .source_rank = 0,
                                .destination_rank = 1,
                                .source_dtype = run->source->whole.dtype,
                                .destination_dtype = run->destination->whole.dtype};
    sim_task send, receive;
    sim_task_make(run->source, &transfer, run->stacked, &send);
    sim_task_make(run->destination, &transfer, run->stacked, &receive);
    banyan_transform *sender = run->sender, *receiver = run->receiver;
    CHECK(sender->should_transform(sender->context, &transfer));
    CHECK(receiver->should_transform(receiver->context, &transfer));
    DLTensor sent[BANYAN_TRANSFORM_MAX_PARTS], received[BANYAN_TRANSFORM_MAX_PARTS];
    int sent_count = -1, received_count = -2;
    banyan_transform_scratch scratch = {0};
    banyan_status status =
        sender->prepare_send(sender->context, &send.task, &scratch, sent, &sent_count);
    if (status == BANYAN_OK)
        status = receiver->prepare_recv(receiver->context, &receive.task, &scratch, received,
                                        &received_count);
    if (status == BANYAN_OK) {
        CHECK(sent_count == received_count, "%d and %d", sent_count, received_count);
        run->part_count = sent_count;
        for (int i = 0; i < sent_count; i++) {
            CHECK_OK(banyan_tensor_copy(&received[i], &sent[i]));
            uint64_t bytes = banyan_dtype_bytes(sent[i].dtype);
            for (int d = 0; d < sent[i].ndim; d++)
                bytes *= (uint64_t)sent[i].shape[d];
            run->wire_bytes += bytes;
        }
        status =
            receiver->finalize_recv(receiver->context, &receive.task, received, received_count);
    }
    transform_scratch_release(&scratch);
    return status;
}

/* Cut a global tensor into boxes at random multiples of align[g] and move them one by one, in
 * random order. */
static inline banyan_status sim_move_all(random_state *random, sim_run *run, const int64_t *shape,
                                         const int64_t *align)
{
    enum { MAX_CUTS = 4 };
    int ndim = run->source->whole.ndim;
    int64_t cuts[BANYAN_MAX_DIMS][MAX_CUTS + 1];
    int counts[BANYAN_MAX_DIMS], boxes = 1;
    run->stacked = random_next(random) % 2;
    for (int g = 0; g < ndim; g++) {
        cuts[g][0] = 0;
        counts[g] = 0;
        while (counts[g] < MAX_CUTS - 1 && cuts[g][counts[g]] < shape[g]) {
            int64_t next = cuts[g][counts[g]] + align[g] * random_between(random, 1, 3);
            cuts[g][++counts[g]] = next < shape[g] ? next : shape[g];
        }
        if (counts[g] == 0 || cuts[g][counts[g]] < shape[g])
            cuts[g][++counts[g]] = shape[g];
        boxes *= counts[g];
    }
    for (int i = 0; i < boxes; i++) {
        banyan_box box = {.ndim = ndim};
        int left = boxes - 1 - i;
        for (int g = 0; g < ndim; g++) {
            int k = left % counts[g];
            left /= counts[g];
            box.start[g] = cuts[g][k];
            box.extent[g] = cuts[g][k + 1] - cuts[g][k];
        }
        RETURN_IF_FAILED(sim_move(run, &box));
    }
    return BANYAN_OK;
}

#endif
