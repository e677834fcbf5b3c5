/* Exchange staged values with the elements of tensors. */
#include <stdlib.h>
#include <string.h>

#include "cuda/memory/memory.h"
#include "cuda/publish/engine.h"

typedef struct changes_staged {
    const changes_engine *engine;
    void *boxes, *parts, *ends; /* device memory */
    bool has[CHANGES_KINDS];
} changes_staged;

void changes_unstage(void *engine, void *argument)
{
    changes_staged *staged = argument;
    int device = ((const changes_engine *)engine)->device;
    if (!staged)
        return;
    bytes_free(device, staged->boxes);
    bytes_free(device, staged->parts);
    bytes_free(device, staged->ends);
    free(staged);
}

/* Host copies of the tables. */
struct staging {
    changes_view *boxes;
    changes_part *parts;
    uint64_t *ends, end_count;
};

static banyan_status staging_fill(struct staging *tables, const strided_view *boxes,
                                  size_t box_count, const struct delta_part *parts, size_t count)
{
    for (size_t i = 0; i < count; i++)
        tables->end_count += parts[i].count;
    tables->boxes = calloc(box_count + 1, sizeof *tables->boxes);
    tables->parts = calloc(count + 1, sizeof *tables->parts);
    tables->ends = calloc(tables->end_count + 1, sizeof *tables->ends);
    if (!tables->boxes || !tables->parts || !tables->ends)
        return banyan_error_set(
            BANYAN_ERR_NO_MEMORY, "cuda: out of memory: %zu bytes for a table of changes",
            count * sizeof *tables->parts + tables->end_count * sizeof *tables->ends);
    for (size_t i = 0; i < box_count; i++)
        tables->boxes[i] = changes_view_elements(&boxes[i]);
    uint64_t next = 0;
    for (size_t i = 0; i < count; i++) {
        tables->parts[i] = (changes_part){.box = parts[i].box,
                                          .first = parts[i].first,
                                          .count = parts[i].count,
                                          .stream = parts[i].stream,
                                          .first_end = next};
        memcpy(tables->ends + next, parts[i].ends, parts[i].count * sizeof *parts[i].ends);
        next += parts[i].count;
    }
    return BANYAN_OK;
}

banyan_status changes_stage(void *argument, const strided_view *boxes, size_t box_count,
                            const struct delta_part *parts, size_t count, void **staged)
{
    const changes_engine *engine = argument;
    struct staging tables = {0};
    changes_staged *made = calloc(1, sizeof *made);
    banyan_status status =
        made ? staging_fill(&tables, boxes, box_count, parts, count)
             : banyan_error_set(BANYAN_ERR_NO_MEMORY,
                                "cuda: out of memory: %zu bytes for a version", sizeof *made);
    if (status == BANYAN_OK) {
        made->engine = engine;
        for (size_t i = 0; i < count; i++)
            made->has[tables.boxes[parts[i].box].kind] = true;
        status = changes_upload(engine->device, tables.boxes, box_count * sizeof *tables.boxes,
                                &made->boxes);
    }
    if (status == BANYAN_OK)
        status = changes_upload(engine->device, tables.parts, count * sizeof *tables.parts,
                                &made->parts);
    if (status == BANYAN_OK)
        status = changes_upload(engine->device, tables.ends, tables.end_count * sizeof *tables.ends,
                                &made->ends);
    free(tables.boxes);
    free(tables.parts);
    free(tables.ends);
    if (status == BANYAN_OK)
        *staged = made;
    else
        changes_unstage(argument, made);
    return status;
}

/* Boxes of different kinds share no elements, so their order does not matter. */
static banyan_status changes_swap_here(const changes_staged *staged, changes_swap_args *args,
                                       bool background, CUstream stream)
{
    const changes_engine *engine = staged->engine;
    uint64_t warps = args->part_count * DELTA_PART_BLOCKS;
    if (!background)
        RETURN_IF_FAILED(changes_check_capture(engine->device, stream));
    for (args->kind = 0; args->kind < CHANGES_KINDS; args->kind++) {
        const changes_kernel *kernel = &engine->swap[args->kind];
        unsigned blocks = background ? kernel->background_blocks : kernel->blocks;
        if (staged->has[args->kind])
            RETURN_IF_FAILED(changes_launch(engine, kernel, blocks, warps, args,
                                            background ? engine->background : stream));
    }
    return background ? DRIVER(engine->device, cuStreamSynchronize, engine->background) : BANYAN_OK;
}

banyan_status changes_swap(void *argument, size_t first, size_t count, ptrdiff_t shift,
                           bool background, void *stream)
{
    const changes_staged *staged = argument;
    changes_swap_args args = {.boxes = staged->boxes,
                              .parts = (const changes_part *)staged->parts + first,
                              .ends = staged->ends,
                              .part_count = count,
                              .shift = shift};
    return DRIVER_WITHIN(staged->engine->device,
                         changes_swap_here(staged, &args, background, stream));
}
