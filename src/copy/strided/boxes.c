#include "copy/strided/boxes.h"

#include <string.h>

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
