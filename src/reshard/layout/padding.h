/* Padding of local tensors: where it lies, and filling it. */
#ifndef RESHARD_LAYOUT_PADDING_H
#define RESHARD_LAYOUT_PADDING_H

#include <banyan/layout.h>

#include "copy/strided/strided.h"

/* The box of a tensor that has strides. With `on_host` the memory must be the host's. */
banyan_status padding_view(const DLTensor *whole, const banyan_box *box, bool on_host,
                           strided_view *view);

/* Write `fill`, one element (NULL: zeros), over a view of host memory. */
void padding_fill(const strided_view *view, const void *fill);

#endif
