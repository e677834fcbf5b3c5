/* Compare published tensors with their copies, in one launch. */
#include <stdlib.h>

#include "cuda/memory/memory.h"
#include "cuda/publish/engine.h"

#define WIDE 16 /* bytes */

/* True if the elements can be read in units of 16 bytes: they are dense, or each row consists of
 * whole aligned units. */
static bool pair_is_wide(const strided_view *live)
{
    size_t bytes = live->elem_bytes;
    bool aligned = (uintptr_t)live->data % WIDE == 0;
    if (bytes > WIDE || (bytes & (bytes - 1)) != 0 || !aligned)
        return false;
    if (live->ndim == 0)
        return true;
    int last = live->ndim - 1;
    if (live->stride[last] != (int64_t)bytes)
        return false;
    for (int i = 0; i < last; i++)
        aligned &= live->stride[i] % WIDE == 0;
    return last == 0 || (aligned && live->extent[last] * live->stride[last] % WIDE == 0);
}

static changes_pair pair_make(const struct delta_compare *tensor, uint64_t first_chunk)
{
    changes_pair pair = {.live = changes_view_elements(&tensor->live),
                         .kept = tensor->kept,
                         .map = (unsigned char *)tensor->map,
                         .elems = tensor->live.elems,
                         .first_chunk = first_chunk,
                         .elem_bytes = (uint32_t)tensor->live.elem_bytes,
                         .unit_elems = 1,
                         .wide = pair_is_wide(&tensor->live)};
    if (pair.wide) {
        pair.unit_elems = WIDE / pair.elem_bytes;
        pair.live.unit_bytes = WIDE;
        pair.live.count = pair.elems / pair.unit_elems;
        if (pair.live.ndim > 0) {
            pair.live.extent[pair.live.ndim - 1] /= pair.unit_elems;
            pair.live.stride[pair.live.ndim - 1] = WIDE;
        }
    }
    uint64_t words = (pair.elems + 63) / 64 + 1;
    pair.map_units = words * 64 / pair.unit_elems;
    return pair;
}

static banyan_status find_here(const changes_engine *engine, changes_find_args *args,
                               CUstream stream)
{
    RETURN_IF_FAILED(
        changes_launch(engine, &engine->find, engine->find.blocks, args->chunks, args, stream));
    return DRIVER(engine->device, cuStreamSynchronize, stream);
}

/* Upload the table, run, and download the counts, which lie behind it. */
static banyan_status find_with(const changes_engine *engine, const changes_pair *pairs,
                               uint64_t *changed, size_t count, uint64_t chunks, CUstream stream)
{
    void *table = NULL, *counts = NULL;
    banyan_status status = changes_upload(engine->device, pairs, count * sizeof *pairs, &table);
    if (status == BANYAN_OK)
        status = changes_upload(engine->device, changed, count * sizeof *changed, &counts);
    changes_find_args args = {table, counts, count, chunks};
    if (status == BANYAN_OK)
        status = DRIVER_WITHIN(engine->device, find_here(engine, &args, stream));
    if (status == BANYAN_OK)
        status = bytes_copy(changed, counts, count * sizeof *changed);
    bytes_free(engine->device, counts);
    bytes_free(engine->device, table);
    return status;
}

banyan_status changes_find(void *argument, struct delta_compare *tensors, size_t count,
                           void *stream)
{
    const changes_engine *engine = argument;
    RETURN_IF_FAILED(DRIVER_WITHIN(engine->device, changes_check_capture(engine->device, stream)));
    if (count == 0)
        return BANYAN_OK;
    changes_pair *pairs = calloc(count, sizeof *pairs);
    uint64_t *changed = calloc(count, sizeof *changed), chunks = 0;
    banyan_status status = BANYAN_OK;
    if (!pairs || !changed)
        status = banyan_error_set(BANYAN_ERR_NO_MEMORY,
                                  "cuda: out of memory: %zu bytes for a table of tensors",
                                  count * (sizeof *pairs + sizeof *changed));
    for (size_t i = 0; i < count && status == BANYAN_OK; i++) {
        pairs[i] = pair_make(&tensors[i], chunks);
        chunks += (pairs[i].map_units + CHANGES_CHUNK - 1) / CHANGES_CHUNK;
    }
    if (status == BANYAN_OK)
        status = find_with(engine, pairs, changed, count, chunks, stream);
    for (size_t i = 0; i < count && status == BANYAN_OK; i++)
        tensors[i].changed = changed[i];
    free(pairs);
    free(changed);
    return status;
}

static banyan_status merge_here(const changes_engine *engine, changes_merge_args *args)
{
    RETURN_IF_FAILED(changes_launch(engine, &engine->merge, engine->merge.blocks,
                                    (args->words + CHANGES_WARP - 1) / CHANGES_WARP, args,
                                    engine->background));
    return DRIVER(engine->device, cuStreamSynchronize, engine->background);
}

banyan_status changes_merge_maps(void *argument, uint64_t *into, const uint64_t *from,
                                 uint64_t words)
{
    const changes_engine *engine = argument;
    changes_merge_args args = {into, from, words};
    return DRIVER_WITHIN_UNCAPTURED(engine->device, merge_here(engine, &args));
}
