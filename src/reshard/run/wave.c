#include <inttypes.h>

#include "core/containers.h"
#include "reshard/layout/box.h"
#include "reshard/run/execute.h"
#include "reshard/run/memory.h"
#include "reshard/transform/object.h"
#include "world/control.h"

static banyan_status place_part(execution *run, execution_part *part, bool is_send)
{
    strided_view view;
    RETURN_IF_FAILED(run->takes_strides ? strided_view_anywhere(&part->tensor, &view)
                                        : strided_view_of(&part->tensor, &view));
    part->elems = (int64_t)view.elems;
    part->staged = NULL;
    if (run->takes_strides || strided_view_is_dense(&view))
        return BANYAN_OK;
    part->staged = run_memory_take(&run->arena, view.elems * view.elem_bytes);
    RETURN_IF_NO_MEMORY(part->staged);
    if (is_send)
        strided_pack(part->staged, &view, 0, view.elems);
    return BANYAN_OK;
}

static const void *part_address(const DLTensor *tensor)
{
    return (const char *)tensor->data + tensor->byte_offset;
}

/* Check that parts have not moved: a kept schedule reads and writes where they were when it was
 * made. */
static banyan_status check_parts_stay(const execution *run, const execution_end *end,
                                      const DLTensor *parts, int count)
{
    bool same = count == end->part_count;
    for (int i = 0; i < count && same; i++)
        same = part_address(&parts[i]) == part_address(&end->parts[i].tensor);
    if (same)
        return BANYAN_OK;
    return error_set(BANYAN_ERR_INVALID,
                     "the transform %s gives other parts of \"%s\" than in the run before",
                     run->transform ? run->transform->name : "none", end->transfer->name);
}

static banyan_status stage_end(execution *run, execution_end *end, bool is_local, bool kept)
{
    /* A tensor that travels unchanged is the same in every run. */
    if (end->part_count > 0 && !end->transformed && (is_local || run->takes_strides))
        return BANYAN_OK;
    DLTensor parts[BANYAN_TRANSFORM_MAX_PARTS];
    int count;
    banyan_transform_scratch scratch = {.arena = &run->arena};
    RETURN_IF_FAILED(execution_prepare_end(run, end, &scratch, parts, &count));
    if (kept)
        RETURN_IF_FAILED(check_parts_stay(run, end, parts, count));
    end->part_count = count;
    for (int i = 0; i < count; i++) {
        end->parts[i].tensor = parts[i];
        if (!is_local)
            RETURN_IF_FAILED(place_part(run, &end->parts[i], end->is_send));
    }
    return BANYAN_OK;
}

static banyan_status wave_sum_part(const execution_part *part, uint64_t *sum)
{
    strided_view view;
    RETURN_IF_FAILED(strided_view_of(&part->tensor, &view));
    return checksum_view(&view, sum);
}

/* Reserve one sum for each part of every end, and compute those of the sends. */
static banyan_status stage_sums(execution *run, execution_wave *wave)
{
    size_t count = 0, at = 0;
    for (size_t i = 0; i < wave->end_count; i++)
        count += (size_t)wave->ends[i]->part_count;
    wave->sums = run_memory_take(&run->arena, count * sizeof *wave->sums);
    RETURN_IF_NO_MEMORY(wave->sums);
    for (size_t i = 0; i < wave->end_count && wave->ends[i]->is_send; i++)
        for (int p = 0; p < wave->ends[i]->part_count; p++)
            RETURN_IF_FAILED(wave_sum_part(&wave->ends[i]->parts[p], &wave->sums[at++]));
    return BANYAN_OK;
}

static banyan_status stage_wave(execution *run, execution_wave *wave)
{
    run_memory_reset(&run->arena);
    for (size_t i = 0; i < wave->end_count; i++)
        RETURN_IF_FAILED(stage_end(run, wave->ends[i], false, wave->schedule != NULL));
    for (size_t i = 0; i < wave->local_count; i++) {
        RETURN_IF_FAILED(stage_end(run, &wave->locals[i][0], true, false));
        RETURN_IF_FAILED(stage_end(run, &wave->locals[i][1], true, false));
    }
    return run->plan->checksums ? stage_sums(run, wave) : BANYAN_OK;
}

static banyan_status wave_submit(const execution *run, const banyan_copy_op *op, bool is_send)
{
    return is_send ? banyan_copy_service_submit_send_op(run->service, op)
                   : banyan_copy_service_submit_recv_op(run->service, op);
}

static banyan_status submit_end(const execution *run, execution_end *end)
{
    for (int p = 0; p < end->part_count; p++) {
        execution_part *part = &end->parts[p];
        banyan_copy_op op = {
            .tensor = part->tensor,
            .peer = end->peer,
            .task_id = end->transfer->task_id,
            .part = end->block * BANYAN_TRANSFORM_MAX_PARTS + (uint32_t)p,
            .flags = part->flags,
        };
        if (part->staged) {
            op.tensor.data = part->staged;
            op.tensor.byte_offset = 0;
            op.tensor.ndim = 1;
            op.tensor.shape = &part->elems;
            op.tensor.strides = NULL;
        }
        RETURN_IF_FAILED(wave_submit(run, &op, end->is_send));
    }
    return BANYAN_OK;
}

/* A tensor that the source and the destination share needs no move. */
bool execution_same_memory(const DLTensor *a, const DLTensor *b)
{
    if (part_address(a) != part_address(b) || !banyan_dtype_equal(a->dtype, b->dtype) ||
        a->ndim != b->ndim || !a->strides || !b->strides)
        return false;
    for (int d = 0; d < a->ndim; d++)
        if (a->shape[d] != b->shape[d] || (a->shape[d] > 1 && a->strides[d] != b->strides[d]))
            return false;
    return true;
}

/* True if the service moves within this rank while it waits for others: it keeps schedules and
 * takes strides. */
static bool service_moves(const execution *run, const execution_end *local)
{
    return run->takes_strides && run->keeps_schedules && !local->transformed;
}

static banyan_status submit_local(const execution *run, execution_end *sending,
                                  execution_end *receiving)
{
    if (!service_moves(run, sending) ||
        execution_same_memory(&sending->parts[0].tensor, &receiving->parts[0].tensor))
        return BANYAN_OK;
    RETURN_IF_FAILED(submit_end(run, sending));
    return submit_end(run, receiving);
}

static uint64_t sums_task_id(int source, int destination)
{
    int pair[2] = {source, destination};
    return hash_bytes(pair, sizeof pair, hash_string("checksums", 0)) >> 1;
}

/* Submit the sums of everything to, or from, one partner as one more task. */
static banyan_status submit_sums(const execution *run, const execution_wave *wave)
{
    size_t at = 0;
    for (size_t i = 0; i < wave->end_count;) {
        const execution_end *first = wave->ends[i];
        int64_t count = 0;
        for (; i < wave->end_count && wave->ends[i]->peer == first->peer &&
               wave->ends[i]->is_send == first->is_send;
             i++)
            count += wave->ends[i]->part_count;
        banyan_copy_op op = {
            .tensor = {.data = wave->sums + at,
                       .device = {kDLCPU, 0},
                       .ndim = 1,
                       .dtype = {kDLUInt, 64, 1},
                       .shape = &count},
            .peer = first->peer,
            .task_id =
                sums_task_id(first->transfer->source_rank, first->transfer->destination_rank),
        };
        RETURN_IF_FAILED(wave_submit(run, &op, first->is_send));
        at += (size_t)count;
    }
    return BANYAN_OK;
}

static banyan_status submit_padding(const execution *run, size_t number)
{
    const strided_view *view = &run->paddings.data[number];
    int64_t strides[BANYAN_MAX_DIMS], none[BANYAN_MAX_DIMS] = {0};
    uint64_t name = number;
    if (view->elems == 0)
        return BANYAN_OK;
    for (int d = 0; d < view->ndim; d++)
        strides[d] = view->stride[d] / (int64_t)view->elem_bytes;
    banyan_copy_op op = {
        .tensor = {.data = run->fills + execution_fill_offset(run, number),
                   .device = run->device,
                   .ndim = view->ndim,
                   .dtype = {kDLUInt, 8, (uint16_t)view->elem_bytes},
                   .shape = (int64_t *)view->extent,
                   .strides = none},
        .peer = run->plan->rank,
        .task_id = hash_bytes(&name, sizeof name, hash_string("padding", 0)) >> 1,
    };
    RETURN_IF_FAILED(wave_submit(run, &op, true));
    op.tensor.data = view->data;
    op.tensor.strides = strides;
    return wave_submit(run, &op, false);
}

static banyan_status submit_wave(const execution *run, const execution_wave *wave)
{
    for (size_t i = 0; i < wave->end_count; i++)
        RETURN_IF_FAILED(submit_end(run, wave->ends[i]));
    for (size_t i = 0; i < wave->local_count; i++)
        RETURN_IF_FAILED(submit_local(run, &wave->locals[i][0], &wave->locals[i][1]));
    /* Padding on a device is filled by moves within this rank. */
    bool fills = run->fills && wave == &run->waves.data[run->waves.count - 1];
    for (size_t i = 0; i < run->paddings.count && fills; i++)
        RETURN_IF_FAILED(submit_padding(run, i));
    return run->plan->checksums ? submit_sums(run, wave) : BANYAN_OK;
}

static banyan_status verify_end(const execution *run, const execution_end *end,
                                const uint64_t *sums)
{
    for (int p = 0; p < end->part_count; p++) {
        uint64_t sum;
        RETURN_IF_FAILED(wave_sum_part(&end->parts[p], &sum));
        char text[BOX_TEXT_BYTES];
        if (sum != sums[p])
            return error_set(BANYAN_ERR_CORRUPT,
                             "%s of \"%s\" that rank %d sent arrived changed at rank %d: its XXH3 "
                             "is %016" PRIx64 ", not %016" PRIx64,
                             banyan_box_format(&end->box, text, sizeof text), end->transfer->name,
                             end->peer, run->plan->rank, sum, sums[p]);
    }
    return BANYAN_OK;
}

static banyan_status finalize_end(const execution *run, const execution_end *end)
{
    DLTensor parts[BANYAN_TRANSFORM_MAX_PARTS];
    if (!end->transformed)
        return BANYAN_OK;
    for (int p = 0; p < end->part_count; p++)
        parts[p] = end->parts[p].tensor;
    return execution_finalize_end(run, end, parts, end->part_count);
}

static banyan_status land_end(const execution *run, const execution_end *end, const uint64_t *sums)
{
    for (int p = 0; p < end->part_count; p++) {
        strided_view view;
        const execution_part *part = &end->parts[p];
        if (!part->staged)
            continue;
        RETURN_IF_FAILED(strided_view_of(&part->tensor, &view));
        strided_unpack(&view, 0, view.elems, part->staged);
    }
    if (sums)
        RETURN_IF_FAILED(verify_end(run, end, sums));
    return finalize_end(run, end);
}

static banyan_status move_local(const execution *run, const execution_end *sending,
                                const execution_end *receiving)
{
    if (service_moves(run, sending))
        return BANYAN_OK;
    if (sending->part_count != receiving->part_count)
        return error_set(BANYAN_ERR_MISMATCH,
                         "the transform %s sends %d parts of \"%s\" and receives %d",
                         run->transform->name, sending->part_count, sending->transfer->name,
                         receiving->part_count);
    for (int p = 0; p < sending->part_count; p++) {
        const DLTensor *from = &sending->parts[p].tensor, *to = &receiving->parts[p].tensor;
        if (!execution_same_memory(from, to))
            RETURN_IF_FAILED(banyan_tensor_copy(to, from));
    }
    return finalize_end(run, receiving);
}

static banyan_status land_wave(const execution *run, const execution_wave *wave)
{
    const uint64_t *sums = wave->sums;
    for (size_t i = 0; i < wave->end_count; i++) {
        const execution_end *end = wave->ends[i];
        if (!end->is_send)
            RETURN_IF_FAILED(land_end(run, end, sums));
        sums += sums ? end->part_count : 0;
    }
    for (size_t i = 0; i < wave->local_count; i++)
        RETURN_IF_FAILED(move_local(run, &wave->locals[i][0], &wave->locals[i][1]));
    return BANYAN_OK;
}

/* With a kept schedule the move proceeds although this rank has failed, since its partners take
 * part; without one the ranks agree first, so that none waits for a task that was not submitted. A
 * rank that fails before the move reports that failure, not its effect on the move. */
banyan_status execution_run_wave(execution *run, execution_wave *wave, banyan_status mine,
                                 bool *agreed)
{
    *agreed = false;
    if (mine == BANYAN_OK)
        mine = stage_wave(run, wave);
    if (!wave->schedule) {
        mine = control_agree(run->world, mine);
        *agreed = mine != BANYAN_OK;
        if (*agreed)
            return mine;
        mine = submit_wave(run, wave);
        if (run->keeps_schedules) { /* or partners would report what is missing, not why */
            mine = control_agree(run->world, mine);
            *agreed = mine != BANYAN_OK;
        }
    }
    error_kept first = error_keep(mine);
    banyan_status moved = BANYAN_OK;
    if (run->keeps_schedules && !wave->schedule)
        moved = banyan_copy_service_prepare(run->service, &wave->schedule);
    if (moved == BANYAN_OK)
        moved = wave->schedule ? banyan_copy_schedule_run(wave->schedule, run->stream)
                               : banyan_copy_service_run(run->service, run->stream);
    if (first.status != BANYAN_OK)
        return error_again(&first);
    return moved == BANYAN_OK ? land_wave(run, wave) : moved;
}
