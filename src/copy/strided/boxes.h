/* A range of elements as boxes: for GPU copies that know nothing but boxes. */
#ifndef COPY_STRIDED_BOXES_H
#define COPY_STRIDED_BOXES_H

#include "copy/strided/strided.h"

/* Two a dimension: the end of a row and the start of one; and the rows between them. */
#define STRIDED_BOXES_MAX (2 * BANYAN_MAX_DIMS)

/* Elements [first, first + count) of the view, in row-major order, as views one after another.
 * `boxes` has room for STRIDED_BOXES_MAX. Returns how many there are. */
int strided_view_boxes(const strided_view *view, uint64_t first, uint64_t count,
                       strided_view *boxes);

#endif
