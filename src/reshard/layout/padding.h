/* Padding of local tensors: where it lies, and filling it. */
#ifndef RESHARD_LAYOUT_PADDING_H
#define RESHARD_LAYOUT_PADDING_H

#include <banyan/layout.h>

#include "copy/strided/strided.h"

/* Return a view of the box of a tensor that has strides. `on_host` requires host memory. */
banyan_status padding_view(const DLTensor *whole, const banyan_box *box, bool on_host,
                           strided_view *view);

/* Write `fill`, one element (NULL: zeros), over a view of host memory. */
void padding_fill(const strided_view *view, const void *fill);

#endif
