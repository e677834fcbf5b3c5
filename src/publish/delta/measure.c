#include <banyan/publish.h>

#include "publish/delta/changes.h"
#include "publish/delta/stream.h"

#define PART_ELEMS ((uint64_t)DELTA_PART_BLOCKS * DELTA_BLOCK)

/* Memory for one part. */
struct measuring {
    char *kept, *live;
    uint64_t *map;
    bytes_writer stream;
};

static void measuring_free(struct measuring *with)
{
    free(with->kept);
    free(with->live);
    free(with->map);
    bytes_writer_free(&with->stream);
}

static banyan_status measure_check_pair(const DLTensor *before, const DLTensor *after)
{
    bool equal = before->ndim == after->ndim && banyan_dtype_equal(before->dtype, after->dtype);
    for (int d = 0; d < before->ndim && equal; d++)
        equal = before->shape[d] == after->shape[d];
    return equal ? BANYAN_OK
                 : error_set(BANYAN_ERR_MISMATCH,
                             "tensors of different types or shapes are compared (%s and %s, %d and "
                             "%d dimensions)",
                             banyan_dtype_name(before->dtype), banyan_dtype_name(after->dtype),
                             before->ndim, after->ndim);
}

/* Return a part's elements: where they lie, or a dense copy at `copy`. */
static char *part_of(const strided_view *view, uint64_t first, uint64_t elems, char *copy)
{
    if (strided_view_is_dense(view))
        return view->data + first * view->elem_bytes;
    strided_pack(copy, view, first, elems);
    return copy;
}

static void measure_part(struct measuring *with, const strided_view *before,
                         const strided_view *after, uint64_t first, banyan_delta_size *size)
{
    uint64_t elems = before->elems - first < PART_ELEMS ? before->elems - first : PART_ELEMS;
    size_t elem_bytes = before->elem_bytes;
    const char *old = part_of(before, first, elems, with->kept);
    strided_view live =
        strided_view_dense(part_of(after, first, elems, with->live), elem_bytes, elems);
    if (memcmp(old, live.data, elems * elem_bytes) == 0)
        return;
    if (old != with->kept)
        memcpy(with->kept, old, elems * elem_bytes);
    memset(with->map, 0, changes_words(elems) * sizeof *with->map);
    size->changed += changes_find(&live, with->kept, with->map);
    const uint64_t *map = with->map;
    delta_source source = {.box = strided_view_dense(with->kept, elem_bytes, elems),
                           .memory = with->kept,
                           .maps = &map,
                           .map_count = 1};
    with->stream.count = 0;
    delta_write(&source, 0, delta_blocks(elems), &with->stream);
    size->bytes += with->stream.count;
}

banyan_status banyan_delta_measure(const DLTensor *before, const DLTensor *after,
                                   banyan_delta_size *size)
{
    strided_view old, live;
    RETURN_IF_NULL(before);
    RETURN_IF_NULL(after);
    RETURN_IF_NULL(size);
    RETURN_IF_FAILED(strided_view_of(before, &old));
    RETURN_IF_FAILED(strided_view_of(after, &live));
    RETURN_IF_FAILED(measure_check_pair(before, after));
    uint64_t part = old.elems < PART_ELEMS ? old.elems : PART_ELEMS;
    struct measuring with = {malloc(part * old.elem_bytes + 1),
                             malloc(part * old.elem_bytes + 1),
                             malloc(changes_words(part) * sizeof *with.map),
                             {0}};
    banyan_delta_size found = {.elems = old.elems};
    banyan_status status = BANYAN_OK;
    if (!with.kept || !with.live || !with.map)
        status = error_no_memory(2 * part * old.elem_bytes, "a part of a tensor");
    for (uint64_t first = 0; first < old.elems && status == BANYAN_OK; first += PART_ELEMS) {
        measure_part(&with, &old, &live, first, &found);
        if (with.stream.failed)
            status = BANYAN_ERR_NO_MEMORY;
    }
    measuring_free(&with);
    if (status == BANYAN_OK)
        *size = found;
    return status;
}
