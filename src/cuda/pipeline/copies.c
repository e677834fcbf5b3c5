#include "cuda/pipeline/copies.h"

#include <stdlib.h>
#include <string.h>

#include "cuda/copy/image.h"
#include "cuda/memory/memory.h"

static uint32_t copies_warps_a_block(const gpu_pipeline *owner)
{
    return owner->threads / COPY_WARP;
}

static banyan_status copies_alloc_on_device(gpu_pipeline_copies *of, size_t bytes)
{
    int device = of->gpu_pipeline->device;
    return DRIVER_WITHIN_UNCAPTURED(device, DRIVER(device, cuMemAlloc, &of->memory, bytes));
}

/* Use no more thread blocks than the longest list has tiles: the description of warps' parts must
 * not exceed the parts. */
static uint32_t blocks_for(const gpu_pipeline *owner, const copy_layout *layout)
{
    uint64_t most = 1;
    for (size_t i = 0; i < layout->lane_count; i++)
        most = layout->lanes[i].tiles > most ? layout->lanes[i].tiles : most;
    uint64_t blocks = (most - 1) / copies_warps_a_block(owner) + 1;
    return blocks < owner->blocks ? (uint32_t)blocks : owner->blocks;
}

static banyan_status copies_upload(gpu_pipeline_copies *of, const copy_layout *layout)
{
    const gpu_pipeline *owner = of->gpu_pipeline;
    copy_image image;
    if (!copy_image_make(layout, of->blocks * copies_warps_a_block(owner), &image))
        return gpu_pipeline_no_memory(image.bytes, "a schedule");
    for (size_t i = 0; i < layout->lane_count; i++)
        copy_image_lanes(&image)[i].peer = owner->rank;
    banyan_status status = copies_alloc_on_device(of, image.bytes);
    const char *there = (const char *)(uintptr_t)of->memory;
    if (status == BANYAN_OK)
        status = bytes_copy((void *)(uintptr_t)of->memory, image.data, image.bytes);
    free(image.data);
    of->args = (copy_args){
        .shared = owner->shared,
        .report = owner->device_report,
        .timeout_ns = owner->timeout_ns,
        .lane_count = 1,
        .phases = COPY_MOVE,
    };
    copy_image_point(&image, there, &of->args);
    return status;
}

banyan_status gpu_pipeline_copies_make(const gpu_pipeline *owner, const direct_moves *const *lists,
                                       size_t count, gpu_pipeline_copies *copies)
{
    gpu_copy_lane *lanes = calloc(count + 1, sizeof *lanes);
    if (!lanes)
        return gpu_pipeline_no_memory((count + 1) * sizeof *lanes, "a schedule");
    for (size_t i = 0; i < count; i++)
        lanes[i] = (gpu_copy_lane){.peer = owner->rank, .moves = lists[i]};
    copy_layout layout;
    banyan_status status = copy_layout_make(lanes, count, 0, &layout);
    free(lanes);
    if (status != BANYAN_OK)
        return status;
    *copies = (gpu_pipeline_copies){.gpu_pipeline = owner, .blocks = blocks_for(owner, &layout)};
    status = copies_upload(copies, &layout);
    copy_layout_free(&layout);
    return status;
}

void gpu_pipeline_copies_free(gpu_pipeline_copies *copies)
{
    if (copies->memory)
        driver.cuMemFree(copies->memory);
    *copies = (gpu_pipeline_copies){0};
}

banyan_status gpu_pipeline_copies_launch(const gpu_pipeline_copies *copies, size_t list,
                                         CUstream stream)
{
    const gpu_pipeline *owner = copies->gpu_pipeline;
    copy_args args = copies->args;
    args.lanes += list;
    args.spans += list * copies->blocks * copies_warps_a_block(owner);
    void *params[] = {&args};
    return DRIVER(owner->device, cuLaunchKernel, owner->copy_kernel, copies->blocks, 1, 1,
                  owner->threads, 1, 1, 0, stream, params, NULL);
}
