/* Padding values in files: a JSON number, "inf", "-inf" or "nan", or the element's bits as
 * "0x7fc0". */
#ifndef RESHARD_LAYOUT_FILL_H
#define RESHARD_LAYOUT_FILL_H

#include <jansson.h>

#include <banyan/layout.h>

#include "copy/strided/strided.h"
#include "core/text/json.h"

/* Write `fill`, one element of the type. NULL when memory ran out. */
json_t *fill_to_json(DLDataType dtype, const void *fill);

/* FORMAT at `path` for a value that the type cannot hold; a fraction is rounded to the nearest
 * float. */
banyan_status fill_from_json(const json_path *path, const json_t *value, DLDataType dtype,
                             unsigned char fill[BANYAN_MAX_FILL_BYTES]);

/* Padding of local tensors: where it lies, and filling it. */

/* Return a view of the box of a tensor that has strides. `on_host` requires host memory. */
banyan_status padding_view(const DLTensor *whole, const banyan_box *box, bool on_host,
                           strided_view *view);

/* Write `fill`, one element (NULL: zeros), over a view of host memory. */
void padding_fill(const strided_view *view, const void *fill);

#endif
