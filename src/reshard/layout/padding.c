#include "reshard/layout/padding.h"

#include <string.h>

banyan_status padding_view(const DLTensor *whole, const banyan_box *box, bool on_host,
                           strided_view *view)
{
    banyan_box place = *box;
    DLTensor part = *whole;
    part.shape = place.extent;
    for (int d = 0; d < part.ndim; d++)
        part.byte_offset +=
            (uint64_t)(box->start[d] * whole->strides[d]) * banyan_dtype_bytes(whole->dtype);
    return on_host ? strided_view_of(&part, view) : strided_view_anywhere(&part, view);
}

/* Fill `count` contiguous elements. */
static void padding_fill_run(char *data, size_t elem_bytes, size_t count, const void *fill)
{
    if (!fill) {
        memset(data, 0, elem_bytes * count);
        return;
    }
    memcpy(data, fill, elem_bytes);
    for (size_t done = 1; done < count; done *= 2)
        memcpy(data + done * elem_bytes, data,
               (count - done < done ? count - done : done) * elem_bytes);
}

static void fill_level(const strided_view *view, int level, char *data, const void *fill)
{
    bool is_run = level == view->ndim - 1 && view->stride[level] == (int64_t)view->elem_bytes;
    if (level == view->ndim || is_run) {
        padding_fill_run(data, view->elem_bytes, is_run ? (size_t)view->extent[level] : 1, fill);
        return;
    }
    for (int64_t i = 0; i < view->extent[level]; i++)
        fill_level(view, level + 1, data + i * view->stride[level], fill);
}

void padding_fill(const strided_view *view, const void *fill)
{
    if (view->elems > 0)
        fill_level(view, 0, view->data, fill);
}
