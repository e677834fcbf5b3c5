/* Plan the puts to a partner, and the slots between it and this rank. */
#include "copy/direct/remote.h"

#include <stdlib.h>

#include "copy/schedule/batch.h"

/* A put of this many bytes is nearly as fast by itself as in a slot, and needs no copies
 * (docs/internals/transports.md). */
#define STRAIGHT_BYTES ((uint64_t)64 << 10)
#define SLOT_BYTES ((uint64_t)512 << 10)
#define PAGE_BYTES ((uint64_t)4096)

static banyan_remote remote_plan_at(const direct_place *place, int64_t offset)
{
    return (banyan_remote){place->handle, (uint64_t)(place->offset + offset)};
}

static banyan_status remote_plan_straight(remote_flow *flow, const direct_place *to,
                                          const char *base, const strided_move *move)
{
    remote_straight task = {.to = remote_plan_at(to, move->to - base), .runs = *move};
    size_t bytes = (size_t)move->count * sizeof *move->loops;
    task.runs.loops = bytes > 0 ? arena_copy(&flow->loops, move->loops, bytes) : NULL;
    if (bytes > 0)
        RETURN_IF_NO_MEMORY(task.runs.loops);
    return array_push(&flow->straight, task) ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
}

banyan_status remote_flow_add(remote_flow *flow, const direct_place *to, const direct_place *from,
                              bool is_send)
{
    const strided_view *own = is_send ? &from->view : &to->view;
    strided_view there = to->view, here = from->view;
    strided_loop loops[STRIDED_MAX_LOOPS];
    strided_move move = {.run_bytes = 0};
    strided_grid grid;
    uint64_t bytes = own->elems * own->elem_bytes;
    /* The address of the other end is unknown here: distances from any base serve. */
    there.data = here.data = own->data;
    if (strided_grid_of(&there, &here, &grid))
        strided_move_plan(&grid, there.data, here.data, loops, &move);
    flow->bytes += bytes;
    if (move.run_bytes >= STRAIGHT_BYTES) {
        flow->straight_bytes += bytes;
        return is_send ? remote_plan_straight(flow, to, there.data, &move) : BANYAN_OK;
    }
    remote_parted task = {flow->views.count,
                          bytes >= STRAIGHT_BYTES && strided_view_is_dense(&to->view),
                          remote_plan_at(to, 0)};
    RETURN_IF_NO_MEMORY(array_push(&flow->views, *own));
    return array_push(&flow->parted, task) ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
}

/* Choose the size of the slots: equal at both ends, and no larger than needed. */
static void size_slots(remote_flow *flow)
{
    uint64_t sum = 0, largest = 0;
    for (size_t i = 0; i < flow->views.count; i++) {
        const strided_view *view = &flow->views.data[i];
        uint64_t bytes = view->elems * view->elem_bytes + PIPELINE_SLOT_ALIGN;
        sum = sum < SLOT_BYTES ? sum + bytes : sum;
        largest = view->elem_bytes > largest ? view->elem_bytes : largest;
    }
    uint64_t slot = sum < SLOT_BYTES ? sum : SLOT_BYTES;
    slot = largest > slot ? largest : slot;
    flow->slot_bytes = (slot + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
}

static banyan_status cut_gathered(remote_flow *flow, const remote_parted *task, bool is_send)
{
    const strided_view *view = &flow->views.data[task->view];
    uint64_t most = flow->slot_bytes / view->elem_bytes;
    for (uint64_t first = 0; first < view->elems; first += most) {
        uint64_t count = view->elems - first < most ? view->elems - first : most;
        remote_batch batch = {flow->pieces.count, is_send, count * view->elem_bytes, task->to};
        batch.to.offset += first * view->elem_bytes;
        RETURN_IF_NO_MEMORY(array_push(&flow->batches, batch));
        if (is_send)
            RETURN_IF_NO_MEMORY(
                array_push(&flow->pieces, (remote_piece){task->view, first, count, 0}));
    }
    return BANYAN_OK;
}

/* List the batches of packed tasks; tasks[i] is a task of view of[i]. */
static banyan_status list_packed(remote_flow *flow, const pipeline_batches *packed,
                                 const size_t *of)
{
    for (size_t i = 0; i < packed->list.count; i++) {
        const pipeline_batch *batch = &packed->list.data[i];
        remote_batch made = {flow->pieces.count, batch->segment_count, batch->bytes, {{0}, 0}};
        made.to.offset = flow->batches.count % REMOTE_SLOTS * flow->slot_bytes;
        RETURN_IF_NO_MEMORY(array_push(&flow->batches, made));
        for (size_t k = 0; k < batch->segment_count; k++) {
            const pipeline_segment *segment = &packed->segments.data[batch->first_segment + k];
            remote_piece piece = {of[segment->task], segment->first_elem, segment->elem_count,
                                  segment->slot_offset};
            RETURN_IF_NO_MEMORY(array_push(&flow->pieces, piece));
        }
    }
    return BANYAN_OK;
}

static banyan_status pack_tasks(remote_flow *flow)
{
    pipeline_batches packed = {0};
    size_t count = 0;
    pipeline_task *tasks = alloc_zeroed(flow->parted.count, sizeof *tasks, "tasks of a flow");
    size_t *of = alloc_zeroed(flow->parted.count, sizeof *of, "tasks of a flow");
    banyan_status status = tasks && of ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
    for (size_t i = 0; status == BANYAN_OK && i < flow->parted.count; i++) {
        const strided_view *view = &flow->views.data[flow->parted.data[i].view];
        if (flow->parted.data[i].is_gathered)
            continue;
        of[count] = flow->parted.data[i].view;
        tasks[count++] = (pipeline_task){view->elems, view->elem_bytes};
    }
    if (status == BANYAN_OK && count > 0)
        status = pipeline_batch_pack(tasks, count, flow->slot_bytes, &packed);
    if (status == BANYAN_OK)
        status = list_packed(flow, &packed, of);
    flow->lands = packed.list.count > 0;
    pipeline_batches_free(&packed);
    free(tasks);
    free(of);
    return status;
}

static banyan_status make_slots(remote_flow *flow, banyan_world *world, bool is_send)
{
    size_t slots = flow->batches.count < REMOTE_SLOTS ? flow->batches.count : REMOTE_SLOTS;
    size_t bytes = slots * flow->slot_bytes;
    if (bytes == 0 || (!is_send && !flow->lands))
        return BANYAN_OK;
    flow->slots = aligned_alloc(PAGE_BYTES, bytes);
    if (!flow->slots)
        return error_no_memory(bytes, "slots of a direct copy");
    if (is_send)
        return BANYAN_OK;
    RETURN_IF_FAILED(banyan_memory_register(world, flow->slots, bytes, &flow->landing));
    flow->is_registered = true;
    return BANYAN_OK;
}

banyan_status remote_flow_finish(remote_flow *flow, banyan_world *world, bool is_send)
{
    size_slots(flow);
    for (size_t i = 0; i < flow->parted.count; i++)
        if (flow->parted.data[i].is_gathered)
            RETURN_IF_FAILED(cut_gathered(flow, &flow->parted.data[i], is_send));
    RETURN_IF_FAILED(pack_tasks(flow));
    array_free(&flow->parted);
    return make_slots(flow, world, is_send);
}

banyan_status remote_flow_land(remote_flow *flow, int peer, const void *handle, size_t bytes)
{
    banyan_memory_handle landing;
    uint64_t slots = flow->batches.count < REMOTE_SLOTS ? flow->batches.count : REMOTE_SLOTS;
    if (bytes == sizeof landing)
        memcpy(&landing, handle, sizeof landing);
    if (bytes != sizeof landing || !flow->lands || landing.rank != peer ||
        landing.kind != BANYAN_MEMORY_USER || landing.bytes != slots * flow->slot_bytes)
        return error_set(BANYAN_ERR_FORMAT, "direct: rank %d sent an invalid description of slots",
                         peer);
    flow->landing = landing;
    for (size_t i = 0; i < flow->batches.count; i++)
        if (flow->batches.data[i].to.handle.kind == 0)
            flow->batches.data[i].to.handle = landing;
    return BANYAN_OK;
}

void remote_flow_withdraw(remote_flow *flow, banyan_world *world)
{
    if (flow->is_registered)
        banyan_memory_unregister(world, &flow->landing);
    flow->is_registered = false;
}

void remote_flow_free(remote_flow *flow, banyan_world *world)
{
    remote_flow_withdraw(flow, world);
    array_free(&flow->straight);
    array_free(&flow->views);
    array_free(&flow->parted);
    array_free(&flow->batches);
    array_free(&flow->pieces);
    arena_free(&flow->loops);
    free(flow->slots);
}
