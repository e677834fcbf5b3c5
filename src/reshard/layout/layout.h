/* Internals of layouts: for the builders, which share the first error, and for the planner. */
#ifndef RESHARD_LAYOUT_LAYOUT_H
#define RESHARD_LAYOUT_LAYOUT_H

#include <banyan/layout.h>

/* Keep the first error. Returns false, so that a builder's step can end with it. */
bool layout_fail(banyan_layout *layout, banyan_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4), cold));
bool layout_failed(const banyan_layout *layout);

/* Keep a fact that the layout was built from and that its shapes do not show: a key of config.json
 * and its value as JSON text. A different second value for a key fails the layout, naming both. */
bool layout_keep_fact(banyan_layout *layout, const char *key, const char *text);
typedef struct facts facts;
const facts *layout_facts(const banyan_layout *layout);

/* Keep the name of a global tensor that the layout's rules leave out on purpose: where a source has
 * it, it need not arrive. */
bool layout_keep_skipped(banyan_layout *layout, const char *name);
bool layout_skips(const banyan_layout *layout, const char *name);
size_t layout_skipped_count(const banyan_layout *layout);
const char *layout_skipped(const banyan_layout *layout, size_t i);

/* Check a shape and compute its bytes; an impossible shape fails the layout. */
bool layout_check_shape(banyan_layout *layout, const char *name, DLDataType dtype, int ndim,
                        const int64_t *shape, uint64_t *bytes);

/* Add everything that `other`, which has no error, holds, with rank_offset added to the ranks of
 * replica sets. */
void layout_add_layout(banyan_layout *layout, const banyan_layout *other, int rank_offset);

/* Copy a layout (NULL: an empty one). `dtypes` replaces the types of its local tensors (NULL: they
 * keep their own). INVALID if padding has a value of another type. */
banyan_status layout_copy(const banyan_layout *layout, const DLDataType *dtypes,
                          banyan_layout **copy);

/* Make a layout of `count` local tensors of a layout, in the order of the list, with all that
 * belongs to them. A tensor is listed once at most. */
banyan_status layout_select(const banyan_layout *layout, const size_t *tensors, size_t count,
                            banyan_layout **selected);

/* Declare as padding, of zeros, every element of the local tensors from `first` on that belongs to
 * no piece. */
void layout_pad_rest(banyan_layout *layout, int first);

/* Return the box in the local tensor's coordinates that holds `box`, a part of piece->box. */
banyan_box piece_local_box(const banyan_piece *piece, int local_ndim, const banyan_box *box);

/* Describe the memory of `box`, a part of piece->box, as a tensor with the global tensor's
 * dimensions in their order. `local` is the piece's local tensor (strides NULL: dense). The view's
 * shape and strides lie in the arrays given, BANYAN_MAX_DIMS long; its byte_offset is its start. */
void piece_view(const banyan_piece *piece, const banyan_box *box, const DLTensor *local,
                int64_t *shape, int64_t *strides, DLTensor *view);

#endif
