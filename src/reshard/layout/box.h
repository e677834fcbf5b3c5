/* Boxes and shapes inside Banyan, beyond the public algebra. */
#ifndef RESHARD_LAYOUT_BOX_H
#define RESHARD_LAYOUT_BOX_H

#include <banyan/layout.h>

/* Does the box lie in a tensor of this shape? Nothing about the box is taken for granted. */
bool box_fits(const banyan_box *box, int ndim, const int64_t *shape);
banyan_box box_whole(int ndim, const int64_t *shape);

/* torch.chunk's rule: `size` in `parts` ranges of ⌈size ÷ parts⌉, the last ones shorter or empty.
 */
void chunk_range(int64_t size, int64_t parts, int64_t index, int64_t *start, int64_t *extent);

/* "[4096, 128]" into `text`, cut to `bytes`. Returns `text`. */
const char *shape_format(int ndim, const int64_t *shape, char *text, size_t bytes);

/* False for a negative extent, and where the product of the others does not fit 63 bits. */
bool shape_bytes(int ndim, const int64_t *shape, size_t elem_bytes, uint64_t *bytes);

/* Room for a formatted box or shape of BANYAN_MAX_DIMS dimensions. */
#define BOX_TEXT_BYTES 352

/* The place of `count` boxes of equal ndim that first overlaps another: their indices in `a` and
 * `b`. Near-linear where planes separate them, as in every tensor that is packed from slices.
 * NO_MEMORY is the only error. */
banyan_status boxes_find_overlap(const banyan_box *boxes, size_t count, bool *found, size_t *a,
                                 size_t *b);

/* Boxes of `whole`, at most `most` of them, that none of `count` boxes, of its ndim, has an element
 * of: disjoint, all such elements when there are no more; to be freed. The boxes may overlap, and
 * reach out of it. n log n for boxes that are slices or tiles. NO_MEMORY is the only error. */
banyan_status boxes_find_holes(const banyan_box *whole, const banyan_box *boxes, size_t count,
                               size_t most, banyan_box **holes, size_t *found);
/* The first one alone. */
banyan_status boxes_find_hole(const banyan_box *whole, const banyan_box *boxes, size_t count,
                              bool *found, banyan_box *hole);

#endif
