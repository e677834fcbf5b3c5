#include "copy/strided/strided.h"

#include <inttypes.h>
#include <string.h>

#include "copy/strided/cursor.h"
#include "copy/strided/loops.h"
#include "core/error.h"

static banyan_status too_large(void)
{
    return error_set(BANYAN_ERR_INVALID, "a tensor's extents and strides do not fit 63 bits");
}

static banyan_status check_header(const DLTensor *tensor)
{
    if (tensor->ndim < 0 || tensor->ndim > BANYAN_MAX_DIMS)
        return error_set(BANYAN_ERR_INVALID, "a tensor has %d dimensions; 0 to %d can be moved",
                         (int)tensor->ndim, BANYAN_MAX_DIMS);
    if (tensor->ndim > 0 && !tensor->shape)
        return error_set(BANYAN_ERR_INVALID, "a tensor of %d dimensions has no shape",
                         (int)tensor->ndim);
    if (banyan_dtype_bytes(tensor->dtype) == 0)
        return error_set(BANYAN_ERR_INVALID,
                         "a tensor's elements (%d bits, %d lanes) do not fill whole bytes",
                         (int)tensor->dtype.bits, (int)tensor->dtype.lanes);
    return BANYAN_OK;
}

static banyan_status count_elements(const DLTensor *tensor, size_t elem_bytes, uint64_t *elems)
{
    bool empty = false;
    for (int i = 0; i < tensor->ndim; i++) {
        if (tensor->shape[i] < 0)
            return error_set(BANYAN_ERR_INVALID, "a tensor's extent %d is %" PRId64, i,
                             tensor->shape[i]);
        empty |= tensor->shape[i] == 0;
    }
    int64_t count = empty ? 0 : 1, bytes;
    for (int i = 0; i < tensor->ndim && !empty; i++)
        if (__builtin_mul_overflow(count, tensor->shape[i], &count))
            return too_large();
    if (__builtin_mul_overflow(count, (int64_t)elem_bytes, &bytes))
        return too_large();
    *elems = (uint64_t)count;
    return BANYAN_OK;
}

/* Add a dimension slower than those present: dimensions are kept fastest first until the view is
 * complete. */
static void add_dimension(strided_view *view, int64_t extent, int64_t stride)
{
    int last = view->ndim - 1;
    if (last >= 0 && view->stride[last] * view->extent[last] == stride) {
        view->extent[last] *= extent;
        return;
    }
    view->extent[view->ndim] = extent;
    view->stride[view->ndim++] = stride;
}

static void reverse_dimensions(strided_view *view)
{
    for (int low = 0, high = view->ndim - 1; low < high; low++, high--) {
        int64_t extent = view->extent[low], stride = view->stride[low];
        view->extent[low] = view->extent[high];
        view->stride[low] = view->stride[high];
        view->extent[high] = extent;
        view->stride[high] = stride;
    }
}

banyan_status strided_view_anywhere(const DLTensor *tensor, strided_view *view)
{
    RETURN_IF_FAILED(check_header(tensor));
    strided_view built = {.elem_bytes = banyan_dtype_bytes(tensor->dtype)};
    RETURN_IF_FAILED(count_elements(tensor, built.elem_bytes, &built.elems));
    if (built.elems > 0 && !tensor->data)
        return error_set(BANYAN_ERR_INVALID, "a tensor of %" PRIu64 " elements has no data",
                         built.elems);
    if (built.elems > 0)
        built.data = (char *)tensor->data + tensor->byte_offset;
    int64_t dense = (int64_t)built.elem_bytes, reach = 0;
    for (int i = tensor->ndim - 1; i >= 0 && built.elems > 0; i--) {
        int64_t extent = tensor->shape[i], stride = dense, length;
        if (tensor->strides &&
            __builtin_mul_overflow(tensor->strides[i], (int64_t)built.elem_bytes, &stride))
            return too_large();
        dense *= extent;
        if (extent == 1)
            continue;
        if (stride == INT64_MIN || __builtin_mul_overflow(extent, stride, &length) ||
            length == INT64_MIN ||
            __builtin_add_overflow(reach, length < 0 ? -length : length, &reach))
            return too_large();
        add_dimension(&built, extent, stride);
    }
    reverse_dimensions(&built);
    *view = built;
    return BANYAN_OK;
}

strided_format strided_format_of(DLDataType dtype)
{
    if (banyan_dtype_equal(dtype, BANYAN_F32))
        return STRIDED_F32;
    if (banyan_dtype_equal(dtype, BANYAN_F16))
        return STRIDED_F16;
    return banyan_dtype_equal(dtype, BANYAN_BF16) ? STRIDED_BF16 : STRIDED_BYTES;
}

banyan_status strided_view_of(const DLTensor *tensor, strided_view *view)
{
    if (tensor->device.device_type != kDLCPU && tensor->device.device_type != kDLCUDAHost)
        return error_set(BANYAN_ERR_INVALID, "a tensor lies on device type %d, not in host memory",
                         (int)tensor->device.device_type);
    return strided_view_anywhere(tensor, view);
}

bool strided_view_is_dense(const strided_view *view)
{
    return view->ndim == 0 || (view->ndim == 1 && view->stride[0] == (int64_t)view->elem_bytes);
}

void strided_view_span(const strided_view *view, char **low, size_t *bytes)
{
    char *lowest = view->data;
    size_t reach = view->elems > 0 ? view->elem_bytes : 0;
    for (int i = 0; i < view->ndim; i++) {
        int64_t length = (view->extent[i] - 1) * view->stride[i];
        if (length < 0) {
            lowest += length;
            length = -length;
        }
        reach += (size_t)length;
    }
    *low = lowest;
    *bytes = reach;
}

static void strided_copy_box(const strided_grid *grid, int level, uint64_t rows, char *to,
                             const char *from, strided_caching caching)
{
    strided_grid box = {.elem_bytes = grid->elem_bytes, .count = grid->count - level};
    memcpy(box.loop, grid->loop + level, (size_t)box.count * sizeof box.loop[0]);
    if (box.count > 0)
        box.loop[0].extent = rows;
    strided_loop loops[STRIDED_MAX_LOOPS];
    strided_move move;
    strided_move_plan(&box, to, from, loops, &move);
    if (caching != STRIDED_BY_SIZE) {
        strided_move_run(&move, caching == STRIDED_PAST_CACHES);
        return;
    }
    bool streaming = strided_move_bytes(&move) >= STRIDED_STREAMING_BYTES;
    strided_move_run(&move, streaming);
    if (streaming)
        strided_fence();
}

static uint64_t elements_below(const strided_grid *grid, int level)
{
    uint64_t elems = 1;
    for (int i = level; i < grid->count; i++)
        elems *= grid->loop[i].extent;
    return elems;
}

/* Copy elements [first, first + count) of the box that the loops from `level` on form: the rest of
 * a row, then whole rows, then the start of one. */
static void copy_range(const strided_grid *grid, int level, char *to, const char *from,
                       uint64_t first, uint64_t count, strided_caching caching)
{
    if (level == grid->count) {
        strided_copy_box(grid, level, 1, to, from, caching);
        return;
    }
    const strided_loop *loop = &grid->loop[level];
    uint64_t row_elems = elements_below(grid, level + 1);
    int64_t row = (int64_t)(first / row_elems);
    uint64_t skipped = first % row_elems;
    if (skipped > 0) {
        uint64_t rest = row_elems - skipped < count ? row_elems - skipped : count;
        copy_range(grid, level + 1, to + row * loop->to, from + row * loop->from, skipped, rest,
                   caching);
        count -= rest;
        row++;
    }
    uint64_t rows = count / row_elems;
    if (rows > 0)
        strided_copy_box(grid, level, rows, to + row * loop->to, from + row * loop->from, caching);
    row += (int64_t)rows;
    count -= rows * row_elems;
    if (count > 0)
        copy_range(grid, level + 1, to + row * loop->to, from + row * loop->from, 0, count,
                   caching);
}

/* Views without a common grid: row against row. */

static void strided_copy_rows(const strided_view *destination, uint64_t destination_first,
                              const strided_view *source, uint64_t source_first, uint64_t count,
                              strided_caching caching)
{
    strided_cursor to = strided_cursor_at(destination, destination_first);
    strided_cursor from = strided_cursor_at(source, source_first);
    while (count > 0) {
        uint64_t elems = strided_cursor_row_left(&to);
        if (elems > strided_cursor_row_left(&from))
            elems = strided_cursor_row_left(&from);
        if (elems > count)
            elems = count;
        strided_grid row = {.elem_bytes = source->elem_bytes, .count = 1};
        row.loop[0] = (strided_loop){elems, strided_cursor_step(&to), strided_cursor_step(&from)};
        strided_copy_box(&row, 0, elems, to.at, from.at, caching);
        strided_cursor_advance(&to, elems);
        strided_cursor_advance(&from, elems);
        count -= elems;
    }
}

/* Dense memory can take any shape: give it the other view's shape, with its own element 0 at number
 * `as`. */
static strided_view reshape_dense(const strided_view *dense, const strided_view *shape,
                                  uint64_t first, uint64_t as)
{
    strided_view view = *shape;
    int64_t stride = (int64_t)view.elem_bytes;
    view.data = dense->data + ((int64_t)first - (int64_t)as) * stride;
    for (int i = view.ndim - 1; i >= 0; i--) {
        view.stride[i] = stride;
        stride *= view.extent[i];
    }
    return view;
}

static void copy_views(const strided_view *destination, uint64_t destination_first,
                       const strided_view *source, uint64_t source_first, uint64_t count,
                       strided_caching caching)
{
    if (count == 0)
        return;
    strided_view to = *destination, from = *source;
    if (strided_view_is_dense(destination)) {
        to = reshape_dense(destination, source, destination_first, source_first);
        destination_first = source_first;
    } else if (strided_view_is_dense(source)) {
        from = reshape_dense(source, destination, source_first, destination_first);
        source_first = destination_first;
    }
    strided_grid grid;
    if (destination_first == source_first && strided_grid_of(&to, &from, &grid))
        copy_range(&grid, 0, to.data, from.data, source_first, count, caching);
    else
        strided_copy_rows(&to, destination_first, &from, source_first, count, caching);
}

void strided_copy(const strided_view *destination, uint64_t destination_first,
                  const strided_view *source, uint64_t source_first, uint64_t count)
{
    copy_views(destination, destination_first, source, source_first, count, STRIDED_BY_SIZE);
}

static strided_view strided_dense_view(void *data, size_t elem_bytes, uint64_t count)
{
    strided_view view = {.data = data, .elem_bytes = elem_bytes, .elems = count, .ndim = 1};
    view.extent[0] = (int64_t)count;
    view.stride[0] = (int64_t)elem_bytes;
    return view;
}

void strided_pack_as(void *dense, const strided_view *source, uint64_t first, uint64_t count,
                     strided_caching caching)
{
    strided_view to = strided_dense_view(dense, source->elem_bytes, count);
    copy_views(&to, 0, source, first, count, caching);
}

void strided_unpack_as(const strided_view *destination, uint64_t first, uint64_t count,
                       const void *dense, strided_caching caching)
{
    strided_view from =
        strided_dense_view((void *)(uintptr_t)dense, destination->elem_bytes, count);
    copy_views(destination, first, &from, 0, count, caching);
}

void strided_pack(void *dense, const strided_view *source, uint64_t first, uint64_t count)
{
    strided_pack_as(dense, source, first, count, STRIDED_BY_SIZE);
}

void strided_unpack(const strided_view *destination, uint64_t first, uint64_t count,
                    const void *dense)
{
    strided_unpack_as(destination, first, count, dense, STRIDED_BY_SIZE);
}

banyan_status banyan_tensor_copy(const DLTensor *destination, const DLTensor *source)
{
    strided_view to, from;
    RETURN_IF_FAILED(strided_view_of(destination, &to));
    RETURN_IF_FAILED(strided_view_of(source, &from));
    if (to.elems != from.elems || to.elem_bytes != from.elem_bytes)
        return error_set(BANYAN_ERR_MISMATCH,
                         "copy of a tensor: the destination has %" PRIu64 " elements of %zu bytes, "
                         "the source %" PRIu64 " of %zu",
                         to.elems, to.elem_bytes, from.elems, from.elem_bytes);
    strided_copy(&to, 0, &from, 0, to.elems);
    return BANYAN_OK;
}

typedef struct box_list {
    const strided_view *view;
    strided_view *boxes;
    int count;
} box_list;

static uint64_t elements_from(const strided_view *view, int level)
{
    uint64_t elems = 1;
    for (int i = level; i < view->ndim; i++)
        elems *= (uint64_t)view->extent[i];
    return elems;
}

/* Add `rows` indices of dimension `level`, with all of the dimensions behind it. */
static void boxes_add_box(box_list *list, int level, uint64_t rows, char *data)
{
    const strided_view *view = list->view;
    strided_view box = {.data = data, .elem_bytes = view->elem_bytes};
    int first = rows == 1 ? level + 1 : level;
    for (int i = first; i < view->ndim; i++, box.ndim++) {
        box.extent[box.ndim] = i == level ? (int64_t)rows : view->extent[i];
        box.stride[box.ndim] = view->stride[i];
    }
    box.elems = elements_from(&box, 0);
    list->boxes[list->count++] = box;
}

/* Add the rest of a row, whole rows, and the start of one. */
static void add_range(box_list *list, int level, char *data, uint64_t first, uint64_t count)
{
    const strided_view *view = list->view;
    if (level == view->ndim) {
        boxes_add_box(list, level, 1, data);
        return;
    }
    uint64_t row_elems = elements_from(view, level + 1);
    int64_t row = (int64_t)(first / row_elems), stride = view->stride[level];
    uint64_t skipped = first % row_elems;
    if (skipped > 0) {
        uint64_t rest = row_elems - skipped < count ? row_elems - skipped : count;
        add_range(list, level + 1, data + row * stride, skipped, rest);
        count -= rest;
        row++;
    }
    uint64_t rows = count / row_elems;
    if (rows > 0)
        boxes_add_box(list, level, rows, data + row * stride);
    row += (int64_t)rows;
    count -= rows * row_elems;
    if (count > 0)
        add_range(list, level + 1, data + row * stride, 0, count);
}

int strided_view_boxes(const strided_view *view, uint64_t first, uint64_t count,
                       strided_view *boxes)
{
    box_list list = {.view = view, .boxes = boxes};
    if (count > 0)
        add_range(&list, 0, view->data, first, count);
    return list.count;
}
