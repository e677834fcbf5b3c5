#include "cuda/courier/copies.h"

#include <stdlib.h>
#include <string.h>

#include "cuda/copy/layout.h"
#include "cuda/memory/memory.h"

/* Where each array begins in the one block of memory. */
typedef struct placement {
    size_t lanes, moves, dims, walks, spans, bytes;
} placement;

static uint32_t warps_a_block(const courier *owner)
{
    return owner->threads / COPY_WARP;
}

static size_t place(size_t *bytes, size_t more)
{
    size_t at = *bytes;
    *bytes += (more + 127) / 128 * 128;
    return at;
}

static placement place_all(const copy_layout *layout, size_t warps)
{
    placement at = {0};
    at.lanes = place(&at.bytes, layout->lane_count * sizeof(copy_lane));
    at.moves = place(&at.bytes, layout->move_count * sizeof(copy_move));
    at.dims = place(&at.bytes, layout->dim_count * sizeof(copy_dim));
    at.walks = place(&at.bytes, layout->walk_count * sizeof(copy_walk));
    at.spans = place(&at.bytes, layout->lane_count * warps * sizeof(copy_span));
    return at;
}

static void put_list(char *to, const void *list, size_t bytes)
{
    if (bytes > 0)
        memcpy(to, list, bytes);
}

static banyan_status make_image(const courier_copies *of, const copy_layout *layout,
                                const placement *at, uint32_t warps, char **image)
{
    char *made = calloc(1, at->bytes + 1);
    if (!made)
        return courier_no_memory(at->bytes, "a schedule");
    copy_lane *lanes = (copy_lane *)(void *)(made + at->lanes);
    for (size_t i = 0; i < layout->lane_count; i++)
        lanes[i].peer = of->courier->rank;
    put_list(made + at->moves, layout->moves, layout->move_count * sizeof(copy_move));
    put_list(made + at->dims, layout->dims, layout->dim_count * sizeof(copy_dim));
    put_list(made + at->walks, layout->walks, layout->walk_count * sizeof(copy_walk));
    copy_layout_spans(layout, warps, (copy_span *)(void *)(made + at->spans));
    *image = made;
    return BANYAN_OK;
}

static banyan_status alloc_on_device(courier_copies *of, size_t bytes)
{
    int device = of->courier->device;
    banyan_status status = driver_enter(device);
    if (status != BANYAN_OK)
        return status;
    driver_capture before = driver_capture_relax();
    status = DRIVER(device, cuMemAlloc, &of->memory, bytes);
    driver_capture_restore(before);
    driver_leave();
    return status;
}

/* No more thread blocks than the longest list has tiles for: what warps are told of their parts
 * must not be more than the parts. */
static uint32_t blocks_for(const courier *owner, const copy_layout *layout)
{
    uint64_t most = 1;
    for (size_t i = 0; i < layout->lane_count; i++)
        most = layout->lanes[i].tiles > most ? layout->lanes[i].tiles : most;
    uint64_t blocks = (most - 1) / warps_a_block(owner) + 1;
    return blocks < owner->blocks ? (uint32_t)blocks : owner->blocks;
}

static banyan_status upload(courier_copies *of, const copy_layout *layout)
{
    const courier *owner = of->courier;
    uint32_t warps = of->blocks * warps_a_block(owner);
    placement at = place_all(layout, warps);
    char *image = NULL;
    banyan_status status = make_image(of, layout, &at, warps, &image);
    if (status != BANYAN_OK)
        return status;
    status = alloc_on_device(of, at.bytes + 1);
    char *there = (char *)(uintptr_t)of->memory;
    if (status == BANYAN_OK)
        status = bytes_copy(there, image, at.bytes);
    free(image);
    of->args = (copy_args){
        .lanes = (const copy_lane *)(void *)(there + at.lanes),
        .moves = (const copy_move *)(void *)(there + at.moves),
        .dims = (const copy_dim *)(void *)(there + at.dims),
        .walks = (const copy_walk *)(void *)(there + at.walks),
        .spans = (const copy_span *)(void *)(there + at.spans),
        .shared = owner->shared,
        .report = owner->device_report,
        .timeout_ns = owner->timeout_ns,
        .lane_count = 1,
        .phases = COPY_MOVE,
    };
    return status;
}

banyan_status courier_copies_make(const courier *owner, const direct_moves *const *lists,
                                  size_t count, courier_copies *copies)
{
    mover_lane *lanes = calloc(count + 1, sizeof *lanes);
    if (!lanes)
        return courier_no_memory((count + 1) * sizeof *lanes, "a schedule");
    for (size_t i = 0; i < count; i++)
        lanes[i] = (mover_lane){.peer = owner->rank, .moves = lists[i]};
    copy_layout layout;
    banyan_status status = copy_layout_make(lanes, count, 0, &layout);
    free(lanes);
    if (status != BANYAN_OK)
        return status;
    *copies = (courier_copies){.courier = owner, .blocks = blocks_for(owner, &layout)};
    status = upload(copies, &layout);
    copy_layout_free(&layout);
    return status;
}

void courier_copies_free(courier_copies *copies)
{
    if (copies->memory)
        driver.cuMemFree(copies->memory);
    *copies = (courier_copies){0};
}

banyan_status courier_copies_launch(const courier_copies *copies, size_t list, CUstream stream)
{
    const courier *owner = copies->courier;
    copy_args args = copies->args;
    args.lanes += list;
    args.spans += list * copies->blocks * warps_a_block(owner);
    void *params[] = {&args};
    return DRIVER(owner->device, cuLaunchKernel, owner->copy_kernel, copies->blocks, 1, 1,
                  owner->threads, 1, 1, 0, stream, params, NULL);
}
