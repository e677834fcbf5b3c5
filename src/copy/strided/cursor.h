/* Walk the elements of a strided view, row by row. */
#ifndef COPY_STRIDED_CURSOR_H
#define COPY_STRIDED_CURSOR_H

#include "copy/strided/view.h"

/* A position in a view. */
typedef struct strided_cursor {
    const strided_view *view;
    char *at; /* the element's address */
    int64_t index[BANYAN_MAX_DIMS];
} strided_cursor;

/* Return the position of an element, by its number in row-major order. */
static inline strided_cursor strided_cursor_at(const strided_view *view, uint64_t elem)
{
    strided_cursor cursor = {.view = view, .at = view->data};
    for (int i = view->ndim - 1; i >= 0; i--) {
        cursor.index[i] = (int64_t)(elem % (uint64_t)view->extent[i]);
        elem /= (uint64_t)view->extent[i];
        cursor.at += cursor.index[i] * view->stride[i];
    }
    return cursor;
}

/* Return the number of elements from here to the end of the row. */
static inline uint64_t strided_cursor_row_left(const strided_cursor *cursor)
{
    int last = cursor->view->ndim - 1;
    return last < 0 ? 1 : (uint64_t)(cursor->view->extent[last] - cursor->index[last]);
}

/* Return the distance of a row's elements in bytes. */
static inline int64_t strided_cursor_step(const strided_cursor *cursor)
{
    int last = cursor->view->ndim - 1;
    return last < 0 ? 0 : cursor->view->stride[last];
}

/* Advance at most to the end of the row. */
static inline void strided_cursor_advance(strided_cursor *cursor, uint64_t elems)
{
    const strided_view *view = cursor->view;
    int64_t steps = (int64_t)elems;
    for (int i = view->ndim - 1; i >= 0; i--) {
        cursor->index[i] += steps;
        cursor->at += steps * view->stride[i];
        if (cursor->index[i] < view->extent[i])
            return;
        cursor->at -= view->extent[i] * view->stride[i];
        cursor->index[i] = 0;
        steps = 1;
    }
}

/* Return the number of elements from here on that lie one behind the other in memory: all of the
 * row, or one. */
static inline uint64_t strided_cursor_run(const strided_cursor *cursor)
{
    return strided_cursor_step(cursor) == (int64_t)cursor->view->elem_bytes
               ? strided_cursor_row_left(cursor)
               : 1;
}

#endif
