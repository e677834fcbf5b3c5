#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory/device.h"
#include "reshard/layout/box.h"
#include "reshard/layout/fill.h"
#include "reshard/layout/layout.h"
#include "reshard/layout/value_map.h"
#include "reshard/run/convert.h"
#include "reshard/run/execute.h"
#include "reshard/run/tensors.h"
#include "reshard/transform/device.h"
#include "reshard/transform/mxfp8.h"
#include "reshard/transform/object.h"
#include "reshard/verify/apart.h"
#include "reshard/verify/run.h"
#include "world/control.h"

/* With a bound on staging, staged data is cut into blocks of this fraction of it, so that waves
 * fill up. */
#define BLOCKS_IN_BOUND 4

#define ZEROS_BYTES 256 /* an upper limit of element sizes */

/* In stage 1 a rank sends from its destination. */
static bool end_is_in_source(const execution_end *end)
{
    return end->is_send && end->transfer->stage == 0;
}

static const banyan_layout *end_layout(const execution *run, const execution_end *end)
{
    return end_is_in_source(end) ? run->plan->source : run->plan->destination;
}

static const banyan_piece *end_piece(const execution *run, const execution_end *end)
{
    return banyan_layout_piece(end_layout(run, end), end->is_send
                                                         ? end->transfer->source_piece
                                                         : end->transfer->destination_piece);
}

static const DLTensor *end_tensor(const execution *run, const execution_end *end)
{
    int tensor = end_piece(run, end)->tensor;
    return banyan_tensors_get(end_is_in_source(end) ? run->source : run->destination,
                              (size_t)tensor);
}

static execution_end build_end_of(const execution *run, const banyan_transfer *transfer,
                                  const execution_blocks *cut, uint64_t number, bool is_send,
                                  bool transformed)
{
    execution_end end = {
        .transfer = transfer,
        .box = execution_block_at(cut, &transfer->box, number),
        .block = (uint32_t)number,
        .peer = is_send ? transfer->destination_rank : transfer->source_rank,
        .is_send = is_send,
        .transformed = transformed,
    };
    uint64_t name[2] = {transfer->task_id, number};
    end.position = execution_position(run, transfer, hash_bytes(name, sizeof name, 0));
    return end;
}

static banyan_status fail_untransformed(const banyan_transfer *transfer)
{
    char text[BOX_TEXT_BYTES];
    return error_set(BANYAN_ERR_INVALID,
                     "%s of \"%s\" goes from rank %d in %s to rank %d in %s, and this run has no "
                     "transform that takes it",
                     banyan_box_format(&transfer->box, text, sizeof text), transfer->name,
                     transfer->source_rank, banyan_dtype_name(transfer->source_dtype),
                     transfer->destination_rank, banyan_dtype_name(transfer->destination_dtype));
}

static banyan_status fail_on_device(const execution *run, const banyan_transfer *transfer)
{
    char text[BOX_TEXT_BYTES], place[DEVICE_TEXT_BYTES];
    return error_set(BANYAN_ERR_UNSUPPORTED,
                     "%s of \"%s\" from rank %d to rank %d is to become its %s, which runs compute "
                     "on the host only, and the copy service moves tensors in %s: move this tensor "
                     "in host memory, with a copy service on the host, and copy the result to the "
                     "GPU",
                     banyan_box_format(&transfer->box, text, sizeof text), transfer->name,
                     transfer->source_rank, transfer->destination_rank,
                     value_map_name(transfer->value_map), device_format(run->device, place));
}

/* A value map comes before the run's own transform. */
static const banyan_transform *build_transform_of(const execution *run,
                                                  const banyan_transfer *transfer)
{
    return transfer->value_map ? value_map_transform() : run->transform;
}

/* Cut a transfer identically at both ends: by the transfer, the bound, the service and the
 * transform. A transformed block may need its elements in both types, at both ends of a local move.
 * Stage 1 of a transform has the blocks of stage 0: its sender has them as they arrived. */
static banyan_status cut_transfer(const execution *run, const banyan_transfer *transfer,
                                  bool transformed, execution_blocks *cut)
{
    *cut = (execution_blocks){.count = 1};
    uint64_t bound = run->plan->max_staging_bytes;
    bool is_local = transfer->source_rank == transfer->destination_rank;
    if (bound == 0 || (!transformed && (run->takes_strides || is_local)))
        return BANYAN_OK;
    size_t source_bytes =
        banyan_dtype_bytes(transformed ? transfer->origin_dtype : transfer->source_dtype);
    size_t both_bytes = source_bytes + banyan_dtype_bytes(transfer->destination_dtype);
    uint64_t cap = bound / BLOCKS_IN_BOUND;
    if (transformed)
        cap = cap / both_bytes * source_bytes;
    *cut = execution_blocks_of(&transfer->box, source_bytes, cap);
    if (cut->count <= UINT32_MAX / BANYAN_TRANSFORM_MAX_PARTS)
        return BANYAN_OK;
    return error_set(BANYAN_ERR_INVALID,
                     "max_staging_bytes %" PRIu64 " would cut the %" PRIu64
                     " bytes of \"%s\" from rank %d to %d into %" PRIu64 " blocks",
                     bound, transfer->bytes, transfer->name, transfer->source_rank,
                     transfer->destination_rank, cut->count);
}

static banyan_status add_transfer(execution *run, const banyan_transfer *transfer, bool is_send)
{
    bool is_local = transfer->source_rank == transfer->destination_rank;
    const banyan_transform *transform = build_transform_of(run, transfer);
    bool transformed = transform && transform->should_transform(transform->context, transfer);
    if (transfer->value_map && !device_is_host(run->device))
        return fail_on_device(run, transfer);
    if (!transformed && !banyan_dtype_equal(transfer->source_dtype, transfer->destination_dtype))
        return fail_untransformed(transfer);
    bool on_the_way = transformed && !device_is_host(run->device);
    transformed &= !on_the_way;
    execution_blocks cut;
    RETURN_IF_FAILED(cut_transfer(run, transfer, transformed, &cut));
    for (uint64_t i = 0; i < cut.count; i++) {
        execution_end end = build_end_of(run, transfer, &cut, i, is_send, transformed);
        execution_end sending = build_end_of(run, transfer, &cut, i, true, transformed);
        end.on_the_way = sending.on_the_way = on_the_way;
        bool added = is_local ? array_push(&run->locals, sending) && array_push(&run->locals, end)
                              : array_push(&run->ends, end);
        RETURN_IF_NO_MEMORY(added);
    }
    return BANYAN_OK;
}

static banyan_status add_transfers(execution *run)
{
    const planner_result *transfers = &run->plan->transfers;
    for (size_t i = 0; i < transfers->send_count; i++)
        RETURN_IF_FAILED(add_transfer(run, &transfers->sends[i], true));
    for (size_t i = 0; i < transfers->recv_count; i++)
        RETURN_IF_FAILED(add_transfer(run, &transfers->recvs[i], false));
    return BANYAN_OK;
}

static void view_end(const execution *run, execution_end *end, execution_part *parts)
{
    piece_view(end_piece(run, end), &end->box, end_tensor(run, end), end->shape, end->strides,
               &end->view);
    end->parts = parts;
}

static size_t part_slots(const execution_end *end)
{
    return end->transformed || end->on_the_way ? BANYAN_TRANSFORM_MAX_PARTS : 1;
}

/* View all ends after the last push, when they no longer move in memory. */
static banyan_status view_ends(execution *run)
{
    size_t slots = 0;
    for (size_t i = 0; i < run->ends.count; i++)
        slots += part_slots(&run->ends.data[i]);
    for (size_t i = 0; i < run->locals.count; i++)
        slots += part_slots(&run->locals.data[i]);
    RETURN_IF_NO_MEMORY(run->parts = alloc_zeroed(slots + 1, sizeof *run->parts, "a run's parts"));
    execution_part *next = run->parts;
    for (size_t i = 0; i < run->ends.count; i++) {
        view_end(run, &run->ends.data[i], next);
        next += part_slots(&run->ends.data[i]);
    }
    for (size_t i = 0; i < run->locals.count; i++) {
        view_end(run, &run->locals.data[i], next);
        next += part_slots(&run->locals.data[i]);
    }
    return BANYAN_OK;
}

static banyan_status view_paddings(execution *run)
{
    for (size_t i = 0; i < banyan_layout_padding_count(run->plan->destination); i++) {
        int tensor;
        const banyan_box *box = banyan_layout_padding(run->plan->destination, i, &tensor);
        const DLTensor *whole = banyan_tensors_get(run->destination, (size_t)tensor);
        strided_view view;
        RETURN_IF_FAILED(padding_view(whole, box, device_is_host(run->device), &view));
        RETURN_IF_NO_MEMORY(array_push(&run->paddings, view));
    }
    return BANYAN_OK;
}

typedef banyan_status (*prepare_fn)(void *context, const banyan_transform_task *task,
                                    banyan_transform_scratch *scratch, DLTensor *parts,
                                    int *part_count);

/* Describe an end as a task; `transfer` receives this block's part of the transfer. */
static banyan_transform_task build_task_of(const execution *run, const execution_end *end,
                                           banyan_transfer *transfer, banyan_box *place)
{
    const banyan_piece *piece = end_piece(run, end);
    const banyan_layout *layout = end_layout(run, end);
    const DLTensor *whole = end_tensor(run, end);
    *transfer = *end->transfer;
    transfer->box = end->box;
    transfer->whole_blocks =
        end->transfer->whole_blocks && mxfp8_keeps_blocks(&end->transfer->box, &end->box);
    transfer->bytes = banyan_box_elems(&end->box) * banyan_dtype_bytes(end->transfer->source_dtype);
    *place = piece_local_box(piece, whole->ndim, &end->box);
    return (banyan_transform_task){
        .transfer = transfer,
        .local = &end->view,
        .whole = whole,
        .local_name = banyan_layout_tensor(layout, (size_t)piece->tensor)->name,
        .local_start = place->start,
        .dim_map = piece->dim_map,
    };
}

/* Prepare ends that are converted on the way once for all runs: the received tensors and the place
 * of their scales do not change. */
static banyan_status prepare_on_the_way(execution *run, execution_end *end, DLTensor *parts,
                                        int *part_count)
{
    banyan_transfer transfer;
    banyan_box place;
    banyan_transform_task task = build_task_of(run, end, &transfer, &place);
    transform_parts made;
    RETURN_IF_FAILED(
        transform_parts_on_device(run->transform, &task, end->is_send, &run->dims, &made));
    for (int p = 0; p < made.count; p++) {
        parts[p] = made.tensors[p];
        end->parts[p].flags = made.flags[p];
    }
    *part_count = made.count;
    return BANYAN_OK;
}

banyan_status execution_prepare_end(execution *run, execution_end *end,
                                    banyan_transform_scratch *scratch, DLTensor *parts,
                                    int *part_count)
{
    if (end->on_the_way)
        return prepare_on_the_way(run, end, parts, part_count);
    if (!end->transformed) {
        parts[0] = end->view;
        *part_count = 1;
        return BANYAN_OK;
    }
    banyan_transfer transfer;
    banyan_box place;
    banyan_transform_task task = build_task_of(run, end, &transfer, &place);
    const banyan_transform *transform = build_transform_of(run, end->transfer);
    prepare_fn prepare = end->is_send ? transform->prepare_send : transform->prepare_recv;
    RETURN_IF_FAILED(prepare(transform->context, &task, scratch, parts, part_count));
    if (*part_count < 1 || *part_count > BANYAN_TRANSFORM_MAX_PARTS)
        return error_set(BANYAN_ERR_INVALID,
                         "the transform %s makes %d parts of \"%s\"; 1 to %d are possible",
                         transform->name, *part_count, transfer.name, BANYAN_TRANSFORM_MAX_PARTS);
    return BANYAN_OK;
}

banyan_status execution_finalize_end(const execution *run, const execution_end *end,
                                     const DLTensor *parts, int part_count)
{
    banyan_transfer transfer;
    banyan_box place;
    banyan_transform_task task = build_task_of(run, end, &transfer, &place);
    const banyan_transform *transform = build_transform_of(run, end->transfer);
    return transform->finalize_recv(transform->context, &task, parts, part_count);
}

/* Ask the transform for its parts once, and free the memory at once, to learn how much it takes: a
 * wave's addresses are settled before the first wave runs. */
static banyan_status measure_end(execution *run, execution_end *end, bool is_local)
{
    banyan_transform_scratch scratch = {.kept_bytes = run->kept_bytes,
                                        .max_kept_bytes = run->plan->max_staging_bytes};
    DLTensor parts[BANYAN_TRANSFORM_MAX_PARTS];
    int count = 0;
    banyan_status status = execution_prepare_end(run, end, &scratch, parts, &count);
    uint64_t need = scratch.bytes;
    for (int i = 0; i < count && status == BANYAN_OK; i++) {
        strided_view view;
        status = strided_view_anywhere(&parts[i], &view);
        if (status == BANYAN_OK && !is_local && !run->takes_strides &&
            !strided_view_is_dense(&view))
            need += run_memory_rounded(view.elems * view.elem_bytes);
        need += run->plan->checksums && !is_local ? sizeof(uint64_t) : 0;
    }
    run_memory_count((int64_t)scratch.bytes);
    run_memory_count(-(int64_t)scratch.bytes);
    transform_scratch_release(&scratch);
    run->kept_bytes = scratch.kept_bytes;
    end->need_bytes = need;
    return status;
}

static banyan_status check_need(const execution *run, const execution_end *end, uint64_t bytes)
{
    char text[BOX_TEXT_BYTES];
    if (run->plan->max_staging_bytes == 0 ||
        bytes + execution_set_aside(run) <= run->plan->max_staging_bytes)
        return BANYAN_OK;
    char kept[96] = "";
    if (run->kept_bytes > 0)
        snprintf(kept, sizeof kept, ", beside %" PRIu64 " to assemble tensors", run->kept_bytes);
    return error_set(BANYAN_ERR_INVALID,
                     "rank %d needs %" PRIu64 " bytes of staging at once for %s of \"%s\"%s; "
                     "max_staging_bytes is %" PRIu64,
                     run->plan->rank, bytes + execution_sums_rounding(run),
                     banyan_box_format(&end->box, text, sizeof text), end->transfer->name, kept,
                     run->plan->max_staging_bytes);
}

/* Check the bound after all ends have been measured: only then is the transform's own memory known.
 */
static banyan_status check_needs(const execution *run)
{
    for (size_t i = 0; i < run->ends.count; i++)
        RETURN_IF_FAILED(check_need(run, &run->ends.data[i], run->ends.data[i].need_bytes));
    for (size_t i = 0; i < run->locals.count; i += 2) {
        const execution_end *sending = &run->locals.data[i], *receiving = sending + 1;
        RETURN_IF_FAILED(check_need(run, sending, sending->need_bytes + receiving->need_bytes));
    }
    return BANYAN_OK;
}

static banyan_status measure_ends(execution *run)
{
    if (run->transform && run->transform->begin)
        RETURN_IF_FAILED(run->transform->begin(run->transform->context));
    for (size_t i = 0; i < run->ends.count; i++)
        RETURN_IF_FAILED(measure_end(run, &run->ends.data[i], false));
    for (size_t i = 0; i < run->locals.count; i++)
        RETURN_IF_FAILED(measure_end(run, &run->locals.data[i], true));
    return check_needs(run);
}

static banyan_status build_check_device(const execution *run)
{
    bool transforms = run->transform && !transform_runs_on_devices(run->transform);
    const char *what = transforms             ? "a transform of the caller's own"
                       : run->plan->checksums ? "checksums"
                       : !run->takes_strides  ? "a copy service that takes dense tensors only"
                       : run->keeps_schedules ? NULL
                                              : "a copy service that keeps no schedules";
    if (device_is_host(run->device) || !what)
        return BANYAN_OK;
    return error_set(
        BANYAN_ERR_UNSUPPORTED,
        "rank %d: a run on device %d does not support %s: it needs tensors in host memory",
        run->plan->rank, run->device.device_id, what);
}

/* Fail with the place where memory lies, as declared or as found there. */
static banyan_status build_fail_place(const execution *run, const char *side, const char *name,
                                      DLDevice place)
{
    char there[DEVICE_TEXT_BYTES], here[DEVICE_TEXT_BYTES];
    bool is_host = device_is_host(place) || place.device_type == kDLCUDAHost;
    return error_set(BANYAN_ERR_INVALID,
                     "rank %d: tensor \"%s\" of the %s lies in %s, and the copy service moves "
                     "tensors in %s: open the service with%s banyan_copy_options.device%s%s",
                     run->plan->rank, name, side, device_format(place, there),
                     device_format(run->device, here), is_host ? "out" : "",
                     is_host ? ", or take the tensors from banyan_tensors_alloc_on" : " = ",
                     is_host ? "" : there);
}

/* Check the places of the tensor sets at hand, by name; a service could name tasks alone. */
static banyan_status check_places_of(const execution *run, const char *side,
                                     const banyan_layout *layout, const banyan_tensors *set)
{
    for (size_t i = 0; i < banyan_layout_tensor_count(layout); i++) {
        const DLTensor *tensor = banyan_tensors_get(set, i);
        DLDevice lies = tensor->device;
        bool here =
            lies.device_type == run->device.device_type && lies.device_id == run->device.device_id;
        if (!tensor->data)
            continue;
        if (device_is_host(run->device))
            RETURN_IF_FAILED(tensor_lies_on_host(tensor, &here, &lies));
        if (!here)
            return build_fail_place(run, side, banyan_layout_tensor(layout, i)->name, lies);
    }
    return BANYAN_OK;
}

static bool is_mxfp8(const execution *run, int tensor)
{
    return transform_is_mxfp8(run->transform) &&
           banyan_dtype_equal(banyan_layout_tensor(run->plan->destination, (size_t)tensor)->dtype,
                              BANYAN_F8_E4M3);
}

static banyan_status fail_mxfp8(const execution *run, banyan_status status, int tensor,
                                const char *problem)
{
    return error_set(status, "rank %d: local tensor \"%s\" in MXFP8 %s", run->plan->rank,
                     banyan_layout_tensor(run->plan->destination, (size_t)tensor)->name, problem);
}

/* Refuse padding other than zeros, and boxes left alone, in MXFP8 tensors: a run writes all scales
 * of such a tensor, and zeroes those of padding blocks on the host. */
static banyan_status build_check_scales(const execution *run)
{
    const banyan_layout *layout = run->plan->destination;
    int tensor;
    for (size_t i = 0; i < banyan_layout_padding_count(layout); i++) {
        banyan_layout_padding(layout, i, &tensor);
        if (!is_mxfp8(run, tensor))
            continue;
        if (banyan_layout_padding_fill(layout, i))
            return fail_mxfp8(run, BANYAN_ERR_INVALID, tensor,
                              "has padding that is filled with a value other than zero, which its "
                              "scales would change");
        if (!device_is_host(run->device))
            return fail_mxfp8(run, BANYAN_ERR_UNSUPPORTED, tensor,
                              "has padding, whose scales are written on the host only");
    }
    for (size_t i = 0; i < banyan_layout_left_alone_count(layout); i++) {
        banyan_layout_left_alone(layout, i, &tensor);
        if (is_mxfp8(run, tensor))
            return fail_mxfp8(run, BANYAN_ERR_INVALID, tensor,
                              "has elements that are to be left alone, whose scales every run "
                              "writes");
    }
    return BANYAN_OK;
}

size_t execution_fill_offset(const execution *run, size_t i)
{
    return banyan_layout_padding_fill(run->plan->destination, i)
               ? ZEROS_BYTES + i * BANYAN_MAX_FILL_BYTES
               : 0;
}

/* Write zeros, then the element of each padding. */
static banyan_status alloc_fills(execution *run)
{
    const memory_device_ops *ops;
    size_t bytes = ZEROS_BYTES + run->paddings.count * BANYAN_MAX_FILL_BYTES;
    void *made;
    if (device_is_host(run->device) || run->paddings.count == 0)
        return BANYAN_OK;
    RETURN_IF_FAILED(memory_device_find(run->device.device_type, &ops));
    RETURN_IF_FAILED(ops->alloc(run->device.device_id, bytes, &made));
    run->fills = made;
    RETURN_IF_FAILED(ops->fill(run->fills, 0, bytes));
    for (size_t i = 0; i < run->paddings.count; i++) {
        const void *fill = banyan_layout_padding_fill(run->plan->destination, i);
        if (fill)
            RETURN_IF_FAILED(
                ops->copy(run->fills + execution_fill_offset(run, i), fill, BANYAN_MAX_FILL_BYTES));
    }
    return BANYAN_OK;
}

static void free_fills(execution *run)
{
    const memory_device_ops *ops;
    if (run->fills && memory_device_find(run->device.device_type, &ops) == BANYAN_OK)
        ops->free(run->device.device_id, run->fills);
}

static banyan_status build_alone(execution *run)
{
    RETURN_IF_FAILED(build_check_device(run));
    RETURN_IF_FAILED(check_places_of(run, "source", run->plan->source, run->source));
    RETURN_IF_FAILED(check_places_of(run, "destination", run->plan->destination, run->destination));
    RETURN_IF_FAILED(build_check_scales(run));
    RETURN_IF_FAILED(banyan_reshard_plan_prove(run->plan));
    RETURN_IF_FAILED(add_transfers(run));
    RETURN_IF_FAILED(view_ends(run));
    RETURN_IF_FAILED(view_paddings(run));
    RETURN_IF_FAILED(alloc_fills(run));
    RETURN_IF_FAILED(check_run_overlaps(run));
    RETURN_IF_FAILED(check_tensors_apart(run->plan->destination, run->destination,
                                         run->plan->transfers.destination_names));
    return measure_ends(run);
}

banyan_status execution_build(const banyan_reshard_plan *plan, banyan_tensors *source,
                              banyan_tensors *destination, banyan_copy_service *service,
                              banyan_world *world, const banyan_transform *transform,
                              execution **built)
{
    execution *run = calloc(1, sizeof *run);
    banyan_status status = run ? BANYAN_OK : error_no_memory(sizeof *run, "a run");
    if (run) {
        uint64_t capabilities = banyan_copy_service_capabilities(service);
        *run = (execution){
            .plan = plan,
            .source = source,
            .destination = destination,
            .source_id = source ? tensors_id(source) : 0,
            .destination_id = destination ? tensors_id(destination) : 0,
            .service = service,
            .world = world,
            .transform = transform,
            .takes_strides = capabilities & BANYAN_COPY_STRIDED,
            .keeps_schedules = capabilities & BANYAN_COPY_KEEPS_SCHEDULES,
            .device = banyan_copy_service_device(service),
        };
        status = execution_count_turns(run);
        if (status == BANYAN_OK)
            status = build_alone(run);
    }
    status = control_agree(world, status);
    if (status == BANYAN_OK)
        status = execution_plan_waves(run);
    if (status != BANYAN_OK) {
        execution_destroy(run);
        return status;
    }
    *built = run;
    return BANYAN_OK;
}

void execution_destroy(execution *run)
{
    if (!run)
        return;
    for (size_t w = 0; w < run->waves.count; w++)
        banyan_copy_schedule_destroy(run->waves.data[w].schedule);
    free_fills(run);
    array_free(&run->ends);
    array_free(&run->locals);
    free(run->end_order);
    free(run->local_order);
    free(run->parts);
    array_free(&run->waves);
    array_free(&run->paddings);
    arena_free(&run->dims);
    run_memory_free(&run->arena);
    free(run);
}
