/* Decompose a range of elements into boxes, for copy engines that only handle boxes. */
#ifndef COPY_STRIDED_BOXES_H
#define COPY_STRIDED_BOXES_H

#include "copy/strided/strided.h"

/* Two per dimension, the end of a row and the start of one, around the whole rows between them. */
#define STRIDED_BOXES_MAX (2 * BANYAN_MAX_DIMS)

/* Split elements [first, first + count) of the view, in row-major order, into consecutive views.
 * `boxes` has space for STRIDED_BOXES_MAX. Returns their number. */
int strided_view_boxes(const strided_view *view, uint64_t first, uint64_t count,
                       strided_view *boxes);

#endif
