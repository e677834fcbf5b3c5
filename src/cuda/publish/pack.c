/* Write the streams of boxes, in the background. */
#include <stdlib.h>
#include <string.h>

#include "cuda/memory/memory.h"
#include "cuda/publish/engine.h"

/* Device memory that grows. */
typedef struct grown {
    void *memory;
    size_t bytes;
} grown;

typedef struct changes_packing {
    changes_engine *engine;
    CUstream stream;
    void *boxes, *maps, *sizes; /* device memory of args */
    uint64_t *block_bytes;      /* a copy of `sizes`; NULL if all boxes are whole */
    size_t pinned_bytes;        /* of `block_bytes` */
    changes_pack_args args;
    grown pieces, to;
} changes_packing;

static banyan_status grow(int device, grown *memory, size_t bytes)
{
    if (bytes <= memory->bytes)
        return BANYAN_OK;
    bytes_free(device, memory->memory);
    *memory = (grown){0};
    RETURN_IF_FAILED(bytes_alloc(device, bytes, &memory->memory));
    memory->bytes = bytes;
    return BANYAN_OK;
}

static banyan_status packing_fail_no_memory(size_t bytes)
{
    return banyan_error_set(BANYAN_ERR_NO_MEMORY, "cuda: out of memory: %zu bytes for a fetch",
                            bytes);
}

/* Upload the table of boxes and that of their maps. */
static banyan_status upload_boxes(changes_packing *made, const delta_source *boxes, size_t count)
{
    int device = made->engine->device;
    size_t map_count = 0;
    for (size_t i = 0; i < count; i++)
        map_count += boxes[i].whole ? 0 : boxes[i].map_count;
    changes_box *table = calloc(count + 1, sizeof *table);
    const uint64_t **maps = calloc(map_count + 1, sizeof *maps);
    if (!table || !maps) {
        free(table);
        free(maps);
        return packing_fail_no_memory(count * sizeof *table);
    }
    map_count = 0;
    for (size_t i = 0; i < count; i++) {
        const delta_source *box = &boxes[i];
        table[i] = (changes_box){.view = changes_view_elements(&box->box),
                                 .memory = box->memory,
                                 .first_map = map_count,
                                 .map_count = box->whole ? 0 : (uint32_t)box->map_count,
                                 .whole = box->whole,
                                 .first_block = made->args.blocks};
        for (size_t k = 0; k < table[i].map_count; k++)
            maps[map_count++] = box->maps[k];
        made->args.blocks += delta_blocks(box->box.elems);
    }
    banyan_status status = changes_upload(device, table, count * sizeof *table, &made->boxes);
    if (status == BANYAN_OK)
        status = changes_upload(device, maps, map_count * sizeof *maps, &made->maps);
    free(table);
    free(maps);
    made->args.boxes = made->boxes;
    made->args.maps = made->maps;
    made->args.box_count = count;
    return status;
}

static banyan_status pack_run_here(changes_packing *packing, const changes_kernel *kernel,
                                   uint64_t warps, void *to, const void *from, size_t bytes)
{
    const changes_engine *engine = packing->engine;
    RETURN_IF_FAILED(changes_launch(engine, kernel, kernel->background_blocks, warps,
                                    &packing->args, packing->stream));
    RETURN_IF_FAILED(DRIVER(engine->device, cuMemcpyAsync, (CUdeviceptr)to, (CUdeviceptr)from,
                            bytes, packing->stream));
    return DRIVER(engine->device, cuStreamSynchronize, packing->stream);
}

static banyan_status measure(changes_packing *made)
{
    size_t bytes = made->args.blocks * sizeof *made->block_bytes;
    void *pinned;
    made->pinned_bytes = bytes + 1;
    RETURN_IF_FAILED(changes_take_pinned(made->engine, &made->pinned_bytes, &pinned));
    made->block_bytes = pinned;
    if (bytes == 0)
        return BANYAN_OK;
    RETURN_IF_FAILED(bytes_alloc(made->engine->device, bytes, &made->sizes));
    made->args.block_bytes = made->sizes;
    return DRIVER_WITHIN(made->engine->device,
                         pack_run_here(made, &made->engine->measure, made->args.blocks,
                                       made->block_bytes, made->sizes, bytes));
}

void changes_pack_close(void *argument)
{
    changes_packing *packing = argument;
    if (!packing)
        return;
    int device = packing->engine->device;
    if (packing->stream && driver_enter(device) == BANYAN_OK) {
        driver.cuStreamDestroy(packing->stream);
        driver_leave();
    }
    bytes_free(device, packing->boxes);
    bytes_free(device, packing->maps);
    bytes_free(device, packing->sizes);
    bytes_free(device, packing->pieces.memory);
    bytes_free(device, packing->to.memory);
    if (packing->block_bytes)
        changes_give_pinned(packing->engine, packing->pinned_bytes, packing->block_bytes);
    free(packing);
}

banyan_status changes_pack_open(void *engine, const delta_source *boxes, size_t count,
                                void **packing, const uint64_t **block_bytes)
{
    changes_packing *made = calloc(1, sizeof *made);
    bool all_whole = true;
    if (!made)
        return packing_fail_no_memory(sizeof *made);
    made->engine = engine;
    for (size_t i = 0; i < count; i++)
        all_whole &= boxes[i].whole;
    int device = made->engine->device;
    banyan_status status = DRIVER_WITHIN(device, changes_stream(device, &made->stream));
    if (status == BANYAN_OK)
        status = upload_boxes(made, boxes, count);
    if (status == BANYAN_OK && !all_whole)
        status = measure(made);
    if (status != BANYAN_OK) {
        changes_pack_close(made);
        return status;
    }
    *packing = made;
    *block_bytes = made->block_bytes;
    return BANYAN_OK;
}

banyan_status changes_pack(void *argument, const struct delta_piece *pieces, size_t count, void *to,
                           size_t bytes)
{
    changes_packing *packing = argument;
    int device = packing->engine->device;
    if (count == 0)
        return BANYAN_OK;
    changes_piece *table = calloc(count, sizeof *table);
    if (!table)
        return packing_fail_no_memory(count * sizeof *table);
    for (size_t i = 0; i < count; i++)
        table[i] = (changes_piece){pieces[i].box, pieces[i].first, pieces[i].count, pieces[i].at};
    banyan_status status = grow(device, &packing->to, bytes);
    if (status == BANYAN_OK)
        status = grow(device, &packing->pieces, count * sizeof *table);
    if (status == BANYAN_OK)
        status = bytes_copy(packing->pieces.memory, table, count * sizeof *table);
    free(table);
    RETURN_IF_FAILED(status);
    packing->args.pieces = packing->pieces.memory;
    packing->args.piece_count = count;
    packing->args.to = packing->to.memory;
    return DRIVER_WITHIN(device,
                         pack_run_here(packing, &packing->engine->pack, count * DELTA_PART_BLOCKS,
                                       to, packing->to.memory, bytes));
}

static banyan_status gather_here(const changes_engine *engine, changes_gather_args *args, void *to,
                                 size_t bytes)
{
    RETURN_IF_FAILED(changes_launch(engine, &engine->gather, engine->gather.background_blocks,
                                    (args->count + CHANGES_WARP - 1) / CHANGES_WARP, args,
                                    engine->background));
    RETURN_IF_FAILED(DRIVER(engine->device, cuMemcpyAsync, (CUdeviceptr)to, (CUdeviceptr)args->to,
                            bytes, engine->background));
    return DRIVER(engine->device, cuStreamSynchronize, engine->background);
}

banyan_status changes_gather(void *argument, const strided_view *from, uint64_t first,
                             uint64_t count, void *to)
{
    const changes_engine *engine = argument;
    size_t bytes = count * from->elem_bytes;
    void *dense;
    RETURN_IF_FAILED(bytes_alloc(engine->device, bytes, &dense));
    changes_gather_args args = {changes_view_elements(from), first, count, dense};
    banyan_status status = DRIVER_WITHIN(engine->device, gather_here(engine, &args, to, bytes));
    bytes_free(engine->device, dense);
    return status;
}
