/* Internal operations on boxes and shapes, beyond the public ones. */
#ifndef RESHARD_LAYOUT_BOX_H
#define RESHARD_LAYOUT_BOX_H

#include <banyan/layout.h>

/* True if the box lies in a tensor of this shape. The box may hold any values. */
bool box_fits(const banyan_box *box, int ndim, const int64_t *shape);
banyan_box box_whole(int ndim, const int64_t *shape);

bool shape_equal(int ndim, const int64_t *shape, int other_ndim, const int64_t *other);

/* Return the index-th range by torch.chunk's rule: ranges of ⌈size ÷ parts⌉, the last ones shorter
 * or empty. */
void chunk_range(int64_t size, int64_t parts, int64_t index, int64_t *start, int64_t *extent);

/* Write "[4096, 128]" into `text`, truncated to `bytes`. Returns `text`. */
const char *shape_format(int ndim, const int64_t *shape, char *text, size_t bytes);

/* False for a negative extent, and when the product of the other extents does not fit 63 bits. */
bool shape_bytes(int ndim, const int64_t *shape, size_t elem_bytes, uint64_t *bytes);

/* Room for a formatted box or shape of BANYAN_MAX_DIMS dimensions. */
#define BOX_TEXT_BYTES 352

/* Find the first of `count` boxes of equal ndim that overlaps another: their indices in `a` and
 * `b`. Near-linear where planes separate the boxes, as in every tensor that is packed from slices.
 * NO_MEMORY is the only error. */
banyan_status boxes_find_overlap(const banyan_box *boxes, size_t count, bool *found, size_t *a,
                                 size_t *b);

/* Return at most `most` disjoint boxes of `whole` that hold no element of the `count` boxes, which
 * have its ndim. Fewer than `most` boxes are all such elements. To be freed. The boxes may overlap,
 * and reach out of `whole`. n log n for boxes that are slices or tiles. NO_MEMORY is the only
 * error. */
banyan_status boxes_find_holes(const banyan_box *whole, const banyan_box *boxes, size_t count,
                               size_t most, banyan_box **holes, size_t *found);
/* Find the first hole alone. */
banyan_status boxes_find_hole(const banyan_box *whole, const banyan_box *boxes, size_t count,
                              bool *found, banyan_box *hole);

#endif
