#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "reshard/box.h"
#include "reshard/execute.h"
#include "reshard/layout.h"
#include "reshard/tensors.h"
#include "reshard/transform_scratch.h"
#include "world/control.h"

/* With a bound, what is staged is cut into blocks of this part of it, so that waves fill up. */
#define BLOCKS_IN_BOUND 4
#define FASTEST_BLOCK_ELEMS 128

/* ---- blocks ---- */

/* A box as blocks of at most `cap` bytes: whole slabs below dimension `dim`, `run` indices along it
 * and single ones above. */
typedef struct blocks {
    int dim;
    int64_t run;
    uint64_t count;
} blocks;

static blocks blocks_of(const banyan_box *box, size_t elem_bytes, uint64_t cap)
{
    blocks cut = {.count = 1};
    if (box->ndim == 0)
        return cut;
    uint64_t slab = banyan_box_elems(box) * elem_bytes;
    for (cut.dim = 0; cut.dim < box->ndim; cut.dim++) {
        slab /= (uint64_t)box->extent[cut.dim];
        if (slab <= cap || cut.dim == box->ndim - 1)
            break;
        cut.count *= (uint64_t)box->extent[cut.dim];
    }
    uint64_t run = cap / slab > 0 ? cap / slab : 1, extent = (uint64_t)box->extent[cut.dim];
    if (cut.dim == box->ndim - 1 && run < extent && run >= FASTEST_BLOCK_ELEMS)
        run = run / FASTEST_BLOCK_ELEMS * FASTEST_BLOCK_ELEMS;
    cut.run = (int64_t)(run < extent ? run : extent);
    cut.count *= (extent + (uint64_t)cut.run - 1) / (uint64_t)cut.run;
    return cut;
}

static banyan_box block_at(const blocks *cut, const banyan_box *box, uint64_t number)
{
    banyan_box block = *box;
    if (cut->count == 1)
        return block;
    int64_t extent = box->extent[cut->dim];
    uint64_t runs = (uint64_t)((extent + cut->run - 1) / cut->run);
    int64_t before = (int64_t)(number % runs) * cut->run;
    block.start[cut->dim] += before;
    block.extent[cut->dim] = extent - before < cut->run ? extent - before : cut->run;
    number /= runs;
    for (int d = cut->dim - 1; d >= 0; d--) {
        block.start[d] += (int64_t)(number % (uint64_t)box->extent[d]);
        block.extent[d] = 1;
        number /= (uint64_t)box->extent[d];
    }
    return block;
}

/* ---- ends ---- */

static const banyan_piece *end_piece(const execution *run, const execution_end *end)
{
    return end->is_send ? &run->plan->source.pieces[end->transfer->source_piece]
                        : &run->plan->destination.pieces[end->transfer->destination_piece];
}

static const DLTensor *end_tensor(const execution *run, const execution_end *end)
{
    int tensor = end_piece(run, end)->tensor;
    return banyan_tensors_get(end->is_send ? run->source : run->destination, (size_t)tensor);
}

static execution_end end_of(const banyan_transfer *transfer, const blocks *cut, uint64_t number,
                            bool is_send, bool transformed)
{
    execution_end end = {
        .transfer = transfer,
        .box = block_at(cut, &transfer->box, number),
        .block = (uint32_t)number,
        .peer = is_send ? transfer->destination_rank : transfer->source_rank,
        .is_send = is_send,
        .transformed = transformed,
    };
    uint64_t name[2] = {transfer->task_id, number};
    end.position = hash_bytes(name, sizeof name, 0) >> 1;
    return end;
}

/* Both ends decide alike: by the transfer, the bound, the service and the transform. */
static banyan_status add_transfer(execution *run, const banyan_transfer *transfer, bool is_send)
{
    uint64_t bound = run->plan->max_staging_bytes;
    bool is_local = transfer->source_rank == transfer->destination_rank;
    bool transformed =
        run->transform && run->transform->should_transform(run->transform->context, transfer);
    if (!transformed && !banyan_dtype_equal(transfer->source_dtype, transfer->destination_dtype)) {
        char text[BOX_TEXT_BYTES];
        return error_set(BANYAN_ERR_INVALID,
                         "%s of \"%s\" goes from rank %d in %s to rank %d in %s, and this run has "
                         "no transform that takes it",
                         banyan_box_format(&transfer->box, text, sizeof text), transfer->name,
                         transfer->source_rank, banyan_dtype_name(transfer->source_dtype),
                         transfer->destination_rank,
                         banyan_dtype_name(transfer->destination_dtype));
    }
    blocks cut = {.count = 1};
    if (bound > 0 && (transformed || (!run->takes_strides && !is_local))) {
        uint64_t cap = bound / BLOCKS_IN_BOUND;
        cut = blocks_of(&transfer->box, banyan_dtype_bytes(transfer->source_dtype), cap);
        if (cut.count > UINT32_MAX / BANYAN_TRANSFORM_MAX_PARTS)
            return error_set(BANYAN_ERR_INVALID,
                             "max_staging_bytes %" PRIu64 " would cut a transfer of %" PRIu64
                             " bytes into %" PRIu64 " blocks",
                             bound, transfer->bytes, cut.count);
    }
    for (uint64_t i = 0; i < cut.count; i++) {
        execution_end end = end_of(transfer, &cut, i, is_send, transformed);
        if (!is_local) {
            if (!array_push(&run->ends, end))
                return BANYAN_ERR_NO_MEMORY;
            continue;
        }
        execution_end sending = end_of(transfer, &cut, i, true, transformed);
        if (!array_push(&run->locals, sending) || !array_push(&run->locals, end))
            return BANYAN_ERR_NO_MEMORY;
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

/* ---- where they lie ---- */

static void view_end(const execution *run, execution_end *end, execution_part *parts)
{
    piece_view(end_piece(run, end), &end->box, end_tensor(run, end), end->shape, end->strides,
               &end->view);
    end->parts = parts;
}

static size_t part_slots(const execution_end *end)
{
    return end->transformed ? BANYAN_TRANSFORM_MAX_PARTS : 1;
}

/* After the last push, when ends stay where they are. */
static banyan_status view_ends(execution *run)
{
    size_t slots = 0;
    for (size_t i = 0; i < run->ends.count; i++)
        slots += part_slots(&run->ends.data[i]);
    for (size_t i = 0; i < run->locals.count; i++)
        slots += part_slots(&run->locals.data[i]);
    run->parts = calloc(slots + 1, sizeof *run->parts);
    if (!run->parts)
        return error_no_memory(slots * sizeof *run->parts, "a run's parts");
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
    const plan_holding *holding = &run->plan->destination;
    for (size_t i = 0; i < holding->padding_count; i++) {
        const plan_padding *padding = &holding->paddings[i];
        const DLTensor *whole = banyan_tensors_get(run->destination, (size_t)padding->tensor);
        DLTensor part = *whole;
        part.shape = holding->paddings[i].box.extent;
        for (int d = 0; d < part.ndim; d++)
            part.byte_offset += (uint64_t)(padding->box.start[d] * whole->strides[d]) *
                                banyan_dtype_bytes(whole->dtype);
        strided_view view;
        RETURN_IF_FAILED(strided_view_of(&part, &view));
        if (!array_push(&run->paddings, view))
            return BANYAN_ERR_NO_MEMORY;
    }
    return BANYAN_OK;
}

/* ---- transforms ---- */

typedef banyan_status (*prepare_fn)(void *context, const banyan_transform_task *task,
                                    banyan_transform_scratch *scratch, DLTensor *parts,
                                    int *part_count);

/* The task of an end; `transfer` receives the transfer as far as this block goes. */
static banyan_transform_task task_of(const execution *run, const execution_end *end,
                                     banyan_transfer *transfer, banyan_box *place)
{
    const banyan_piece *piece = end_piece(run, end);
    const plan_holding *holding = end->is_send ? &run->plan->source : &run->plan->destination;
    const DLTensor *whole = end_tensor(run, end);
    *transfer = *end->transfer;
    transfer->box = end->box;
    transfer->bytes = banyan_box_elems(&end->box) * banyan_dtype_bytes(end->transfer->source_dtype);
    *place = piece_local_box(piece, whole->ndim, &end->box);
    return (banyan_transform_task){
        .transfer = transfer,
        .local = &end->view,
        .whole = whole,
        .local_name = holding->tensors[piece->tensor].name,
        .local_start = place->start,
        .dim_map = piece->dim_map,
    };
}

banyan_status execution_prepare_end(const execution *run, execution_end *end,
                                    banyan_transform_scratch *scratch, DLTensor *parts,
                                    int *part_count)
{
    if (!end->transformed) {
        parts[0] = end->view;
        *part_count = 1;
        return BANYAN_OK;
    }
    banyan_transfer transfer;
    banyan_box place;
    banyan_transform_task task = task_of(run, end, &transfer, &place);
    const banyan_transform *transform = run->transform;
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
    banyan_transform_task task = task_of(run, end, &transfer, &place);
    return run->transform->finalize_recv(run->transform->context, &task, parts, part_count);
}

/* ---- what staging takes ---- */

/* Ask the transform for its parts once, in memory that is given back at once, to learn how much it
 * takes: a wave's addresses are settled before the first wave runs. */
static banyan_status measure_end(const execution *run, execution_end *end, bool is_local)
{
    banyan_transform_scratch scratch = {0};
    DLTensor parts[BANYAN_TRANSFORM_MAX_PARTS];
    int count = 0;
    banyan_status status = execution_prepare_end(run, end, &scratch, parts, &count);
    uint64_t need = scratch.bytes;
    for (int i = 0; i < count && status == BANYAN_OK; i++) {
        strided_view view;
        status = strided_view_of(&parts[i], &view);
        if (status == BANYAN_OK && !is_local && !run->takes_strides &&
            !strided_view_is_dense(&view))
            need += run_memory_rounded(view.elems * view.elem_bytes);
        need += run->plan->checksums && !is_local ? sizeof(uint64_t) : 0;
    }
    run_memory_count((int64_t)scratch.bytes);
    run_memory_count(-(int64_t)scratch.bytes);
    transform_scratch_release(&scratch);
    end->need_bytes = need;
    return status;
}

/* A wave's checksums are one piece of staging: what it is rounded up by is set aside. */
static uint64_t sums_rounding(const execution *run)
{
    return run->plan->checksums ? run_memory_rounded(1) : 0;
}

static banyan_status check_need(const execution *run, const execution_end *end, uint64_t bytes)
{
    char text[BOX_TEXT_BYTES];
    bytes += sums_rounding(run);
    if (run->plan->max_staging_bytes == 0 || bytes <= run->plan->max_staging_bytes)
        return BANYAN_OK;
    return error_set(BANYAN_ERR_INVALID,
                     "rank %d needs %" PRIu64 " bytes of staging at once for %s of \"%s\"; "
                     "max_staging_bytes is %" PRIu64,
                     run->plan->rank, bytes, banyan_box_format(&end->box, text, sizeof text),
                     end->transfer->name, run->plan->max_staging_bytes);
}

static banyan_status measure_ends(execution *run)
{
    if (run->transform && run->transform->begin)
        RETURN_IF_FAILED(run->transform->begin(run->transform->context));
    for (size_t i = 0; i < run->ends.count; i++) {
        execution_end *end = &run->ends.data[i];
        RETURN_IF_FAILED(measure_end(run, end, false));
        RETURN_IF_FAILED(check_need(run, end, end->need_bytes));
    }
    for (size_t i = 0; i < run->locals.count; i += 2) {
        execution_end *sending = &run->locals.data[i], *receiving = sending + 1;
        RETURN_IF_FAILED(measure_end(run, sending, true));
        RETURN_IF_FAILED(measure_end(run, receiving, true));
        RETURN_IF_FAILED(check_need(run, sending, sending->need_bytes + receiving->need_bytes));
    }
    return BANYAN_OK;
}

/* ---- waves ---- */

static int compare_needs(const void *left, const void *right)
{
    const execution_need *a = left, *b = right;
    return (a->position > b->position) - (a->position < b->position);
}

static size_t wave_of(const execution_boundaries *boundaries, uint64_t position)
{
    size_t low = 0, high = boundaries->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (boundaries->data[middle] <= position)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static int compare_ends(const void *left, const void *right)
{
    const execution_end *a = *(execution_end *const *)left, *b = *(execution_end *const *)right;
    if (a->wave != b->wave)
        return a->wave < b->wave ? -1 : 1;
    if (a->is_send != b->is_send)
        return a->is_send ? -1 : 1;
    if (a->peer != b->peer)
        return a->peer < b->peer ? -1 : 1;
    if (a->transfer->task_id != b->transfer->task_id)
        return a->transfer->task_id < b->transfer->task_id ? -1 : 1;
    return (a->block > b->block) - (a->block < b->block);
}

static banyan_status order_ends(const execution_end *ends, size_t count, size_t step,
                                execution_end ***order)
{
    execution_end **made = calloc(count / step + 1, sizeof *made);
    if (!made)
        return error_no_memory(count * sizeof *made, "a run's order");
    for (size_t i = 0; i < count / step; i++)
        made[i] = (execution_end *)&ends[i * step];
    qsort(made, count / step, sizeof *made, compare_ends);
    *order = made;
    return BANYAN_OK;
}

/* Deal ends and local moves to the waves, in order. */
static banyan_status deal_waves(execution *run, const execution_boundaries *boundaries)
{
    size_t waves = boundaries->count + 1;
    if (!array_reserve(&run->waves, waves))
        return BANYAN_ERR_NO_MEMORY;
    memset(run->waves.data, 0, waves * sizeof run->waves.data[0]);
    run->waves.count = waves;
    for (size_t i = 0; i < run->ends.count; i++)
        run->ends.data[i].wave = wave_of(boundaries, run->ends.data[i].position);
    for (size_t i = 0; i < run->locals.count; i++)
        run->locals.data[i].wave = wave_of(boundaries, run->locals.data[i].position);
    RETURN_IF_FAILED(order_ends(run->ends.data, run->ends.count, 1, &run->end_order));
    RETURN_IF_FAILED(order_ends(run->locals.data, run->locals.count, 2, &run->local_order));
    size_t end = 0, local = 0;
    for (size_t w = 0; w < waves; w++) {
        execution_wave *wave = &run->waves.data[w];
        wave->ends = run->end_order + end;
        while (end < run->ends.count && run->end_order[end]->wave == w)
            wave->end_count++, end++;
        wave->locals = run->local_order + local;
        while (local < run->locals.count / 2 && run->local_order[local]->wave == w)
            wave->local_count++, local++;
    }
    return BANYAN_OK;
}

static banyan_status list_needs(const execution *run, execution_need **needs, size_t *count)
{
    size_t most = run->ends.count + run->locals.count;
    execution_need *listed = calloc(most + 1, sizeof *listed);
    if (!listed)
        return error_no_memory(most * sizeof *listed, "a run's waves");
    for (size_t i = 0; i < run->ends.count; i++)
        listed[i] = (execution_need){run->ends.data[i].position, run->ends.data[i].need_bytes};
    for (size_t i = 0; i < run->locals.count; i++)
        listed[run->ends.count + i] =
            (execution_need){run->locals.data[i].position, run->locals.data[i].need_bytes};
    qsort(listed, most, sizeof *listed, compare_needs);
    *needs = listed;
    *count = most;
    return BANYAN_OK;
}

static banyan_status plan_waves(execution *run)
{
    execution_need *needs = NULL;
    size_t count = 0;
    execution_boundaries boundaries = {0};
    banyan_status status = control_agree(run->world, list_needs(run, &needs, &count));
    if (status == BANYAN_OK && run->plan->max_staging_bytes > 0)
        status =
            execution_cut_waves(run->world, needs, count,
                                run->plan->max_staging_bytes - sums_rounding(run), &boundaries);
    if (status == BANYAN_OK)
        status = control_agree(run->world, deal_waves(run, &boundaries));
    free(needs);
    array_free(&boundaries);
    return status;
}

static uint64_t largest_wave(const execution *run)
{
    uint64_t largest = 0;
    for (size_t w = 0; w < run->waves.count; w++) {
        const execution_wave *wave = &run->waves.data[w];
        uint64_t total = sums_rounding(run);
        for (size_t i = 0; i < wave->end_count; i++)
            total += wave->ends[i]->need_bytes;
        for (size_t i = 0; i < wave->local_count; i++)
            total += wave->locals[i][0].need_bytes + wave->locals[i][1].need_bytes;
        largest = total > largest ? total : largest;
    }
    return largest;
}

static banyan_status alloc_arena(execution *run)
{
    uint64_t mine = largest_wave(run), most;
    RETURN_IF_FAILED(control_max(run->world, mine, &most));
    return most > 0 ? run_memory_alloc(run->world, (size_t)mine, &run->arena) : BANYAN_OK;
}

/* ---- all of it ---- */

static banyan_status build_alone(execution *run)
{
    RETURN_IF_FAILED(add_transfers(run));
    RETURN_IF_FAILED(view_ends(run));
    RETURN_IF_FAILED(view_paddings(run));
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
        };
        status = build_alone(run);
    }
    status = control_agree(world, status);
    if (status == BANYAN_OK)
        status = plan_waves(run);
    if (status == BANYAN_OK)
        status = alloc_arena(run);
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
        banyan_copy_schedule_free(run->waves.data[w].schedule);
    array_free(&run->ends);
    array_free(&run->locals);
    free(run->end_order);
    free(run->local_order);
    free(run->parts);
    array_free(&run->waves);
    array_free(&run->paddings);
    run_memory_free(&run->arena);
    free(run);
}
