#include "copy/pipeline/backend.h"

#include <stdlib.h>

#include "copy/match/match.h"
#include "copy/strided/strided.h"
#include "core/containers.h"
#include "world/control.h"

#define SLOTS BANYAN_PIPELINE_SLOTS

/* View the elements of a box in the slot, one behind the other. */
static strided_view slot_view(char *at, const strided_view *box, const pipeline_formats *formats)
{
    strided_view dense = {.data = at, .elem_bytes = box->elem_bytes, .elems = box->elems};
    if (formats->slot != formats->tensor) {
        dense.format = formats->slot;
        dense.elem_bytes = strided_format_bytes(formats->slot);
    }
    if (strided_is_scales(formats->slot))
        dense.elems /= STRIDED_BLOCK;
    if (dense.elems > 1) {
        dense.ndim = 1;
        dense.extent[0] = (int64_t)dense.elems;
        dense.stride[0] = (int64_t)dense.elem_bytes;
    }
    return dense;
}

/* Add elements of a tensor, and their consecutive places in a slot. */
static banyan_status add_segment(direct_moves *moves, const banyan_segment *segment,
                                 const pipeline_formats *formats, char *slot, bool unpacks)
{
    strided_view whole, boxes[STRIDED_BOXES_MAX];
    RETURN_IF_FAILED(strided_view_anywhere(&segment->tensor, &whole));
    int count = strided_view_boxes(&whole, segment->first_elem, segment->elem_count, boxes);
    char *at = slot + segment->slot_offset;
    for (int i = 0; i < count; i++) {
        strided_view *box = &boxes[i], dense = slot_view(at, box, formats);
        box->format = formats->tensor;
        RETURN_IF_FAILED(
            direct_moves_add_whole(moves, unpacks ? box : &dense, unpacks ? &dense : box));
        at += dense.elems * dense.elem_bytes;
    }
    return BANYAN_OK;
}

static banyan_status add_batch(gpu_pipeline_steps *steps, const banyan_slot_batch *planned,
                               const pipeline_formats *formats, char *slot, bool unpacks,
                               gpu_pipeline_batch *batch)
{
    direct_moves *moves = &steps->moves[steps->move_count++];
    *batch = (gpu_pipeline_batch){
        .peer = planned->peer, .slot = -1, .bytes = planned->bytes, .moves = moves};
    for (size_t i = 0; i < planned->segment_count; i++)
        RETURN_IF_FAILED(add_segment(moves, &planned->segments[i], &formats[i], slot, unpacks));
    return BANYAN_OK;
}

static banyan_status steps_fill_batches(const pipeline_schedule *schedule,
                                        const gpu_pipeline_slots *slots, gpu_pipeline_steps *steps)
{
    size_t sent = 0, received = 0;
    for (size_t i = 0; i < schedule->iteration_count; i++) {
        const banyan_iteration *planned = &schedule->iterations[i];
        gpu_pipeline_step *step = &steps->list[i];
        step->round = schedule->rounds[i];
        step->send.peer = step->recv.peer = -1;
        if (planned->send.peer >= 0)
            RETURN_IF_FAILED(add_batch(steps, &planned->send, schedule->send_formats[i],
                                       slots->send[sent++ % SLOTS], false, &step->send));
        if (planned->recv.peer >= 0) {
            int slot = (int)(received++ % SLOTS);
            RETURN_IF_FAILED(add_batch(steps, &planned->recv, schedule->recv_formats[i],
                                       slots->recv[slot], true, &step->recv));
            step->recv.slot = slot;
        }
    }
    return BANYAN_OK;
}

static banyan_status steps_fill_local(const pipeline_schedule *schedule, gpu_pipeline_steps *steps)
{
    for (size_t i = 0; i < schedule->local_count; i++) {
        strided_view to, from;
        const banyan_copy_pair *pair = &schedule->local[i];
        RETURN_IF_FAILED(copy_op_view(&schedule->recvs[pair->recv], false, &to));
        RETURN_IF_FAILED(copy_op_view(&schedule->sends[pair->send], true, &from));
        RETURN_IF_FAILED(direct_moves_add_whole(&steps->local, &to, &from));
    }
    return BANYAN_OK;
}

static banyan_status steps_fill(const pipeline_schedule *schedule, const gpu_pipeline_slots *slots,
                                gpu_pipeline_steps *steps)
{
    size_t count = schedule->iteration_count;
    steps->list = calloc(count + 1, sizeof *steps->list);
    steps->moves = calloc(2 * count + 1, sizeof *steps->moves);
    if (!steps->list || !steps->moves)
        return error_no_memory((count + 1) * (sizeof *steps->list + 2 * sizeof *steps->moves),
                               "the steps of a schedule");
    steps->count = count;
    RETURN_IF_FAILED(steps_fill_batches(schedule, slots, steps));
    return steps_fill_local(schedule, steps);
}

/* Write one byte per batch, for the sender. */
static banyan_status write_slots(const gpu_pipeline_steps *steps, bytes_writer *by_rank, int ranks)
{
    for (size_t i = 0; i < steps->count; i++) {
        const gpu_pipeline_batch *batch = &steps->list[i].recv;
        unsigned char slot = (unsigned char)batch->slot;
        if (batch->peer >= 0)
            bytes_write(&by_rank[batch->peer], &slot, 1);
    }
    for (int rank = 0; rank < ranks; rank++)
        RETURN_IF_NO_MEMORY(!by_rank[rank].failed);
    return BANYAN_OK;
}

static banyan_status wrong_slots(const banyan_world *world, int peer, const char *what)
{
    return error_set(BANYAN_ERR_MISMATCH,
                     "pipeline: rank %d received slots from rank %d for %s batches than it sends",
                     banyan_world_rank(world), peer, what);
}

/* Read the slots of this rank's batches; both ends list their common batches in equal order. */
static banyan_status read_slots(const banyan_world *world, const control_message *messages,
                                size_t count, gpu_pipeline_steps *steps)
{
    for (size_t m = 0; m < count; m++) {
        const unsigned char *slots = messages[m].data;
        size_t next = 0;
        for (size_t i = 0; i < steps->count && next < messages[m].bytes; i++) {
            gpu_pipeline_batch *batch = &steps->list[i].send;
            if (batch->peer == messages[m].rank)
                batch->slot = slots[next++] % SLOTS;
        }
        if (next < messages[m].bytes)
            return wrong_slots(world, messages[m].rank, "more");
    }
    for (size_t i = 0; i < steps->count; i++) {
        const gpu_pipeline_batch *batch = &steps->list[i].send;
        if (batch->peer >= 0 && batch->slot < 0)
            return wrong_slots(world, batch->peer, "fewer");
    }
    return BANYAN_OK;
}

/* A rank that failed takes part too, with an empty message. */
static banyan_status exchange_slots(banyan_world *world, banyan_status mine,
                                    gpu_pipeline_steps *steps)
{
    int ranks = banyan_world_size(world);
    size_t all = (size_t)ranks, sent = 0, received_count;
    bytes_writer *by_rank = calloc(all, sizeof *by_rank);
    control_message *messages = calloc(all, sizeof *messages), *received;
    if (mine == BANYAN_OK && (!by_rank || !messages))
        mine = error_no_memory(all * (sizeof *by_rank + sizeof *messages), "messages about slots");
    if (mine == BANYAN_OK)
        mine = write_slots(steps, by_rank, ranks);
    for (int rank = 0; rank < ranks && mine == BANYAN_OK; rank++)
        if (by_rank[rank].count > 0)
            messages[sent++] = (control_message){rank, by_rank[rank].data, by_rank[rank].count};
    banyan_status exchanged =
        control_exchange(world, messages, sent, "pipeline slots", &received, &received_count);
    if (exchanged == BANYAN_OK) {
        if (mine == BANYAN_OK)
            mine = read_slots(world, received, received_count, steps);
        control_messages_free(received, received_count);
    }
    for (int rank = 0; rank < ranks && by_rank; rank++)
        bytes_writer_free(&by_rank[rank]);
    free(by_rank);
    free(messages);
    return mine != BANYAN_OK ? mine : exchanged;
}

banyan_status gpu_pipeline_steps_make(banyan_world *world, const pipeline_schedule *schedule,
                                      const gpu_pipeline_slots *slots, gpu_pipeline_steps *steps)
{
    gpu_pipeline_steps made = {0};
    banyan_status status = exchange_slots(world, steps_fill(schedule, slots, &made), &made);
    status = copy_agree(world, status);
    if (status == BANYAN_OK)
        *steps = made;
    else
        gpu_pipeline_steps_free(&made);
    return status;
}

void gpu_pipeline_steps_free(gpu_pipeline_steps *steps)
{
    for (size_t i = 0; i < steps->move_count; i++)
        direct_moves_free(&steps->moves[i]);
    direct_moves_free(&steps->local);
    free(steps->moves);
    free(steps->list);
}
