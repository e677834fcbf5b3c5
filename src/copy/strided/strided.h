/* Copy strided boxes in host memory. */
#ifndef COPY_STRIDED_STRIDED_H
#define COPY_STRIDED_STRIDED_H

#include "copy/strided/view.h"

/* View a host tensor. INVALID, naming the problem, for a tensor that is not on the host, has too
 * many dimensions, a negative extent, elements but no data, or a size that does not fit 63 bits. */
banyan_status strided_view_of(const DLTensor *tensor, strided_view *view);
/* View a tensor in any memory, which the host may be unable to touch. */
banyan_status strided_view_anywhere(const DLTensor *tensor, strided_view *view);

/* Return the format; STRIDED_BYTES for any other type than the three. */
strided_format strided_format_of(DLDataType dtype);

/* True when the elements are contiguous in row-major order. */
bool strided_view_is_dense(const strided_view *view);

/* View elements that lie one behind the other. */
static inline strided_view strided_view_dense(void *data, size_t elem_bytes, uint64_t elems)
{
    return (strided_view){.data = (char *)data,
                          .elem_bytes = elem_bytes,
                          .elems = elems,
                          .ndim = 1,
                          .extent = {(int64_t)elems},
                          .stride = {(int64_t)elem_bytes}};
}

/* Find the lowest address of the elements, and the bytes from there to the end of the highest (0
 * for no elements). */
void strided_view_span(const strided_view *view, char **low, size_t *bytes);

/* Copy elements [source_first, source_first + count), in row-major order, of source to as many
 * elements of destination from destination_first on. Equal element sizes; no overlap. */
void strided_copy(const strided_view *destination, uint64_t destination_first,
                  const strided_view *source, uint64_t source_first, uint64_t count);

/* Copy to and from dense memory. */
void strided_pack(void *dense, const strided_view *source, uint64_t first, uint64_t count);
void strided_unpack(const strided_view *destination, uint64_t first, uint64_t count,
                    const void *dense);

/* Copy as strided_copy, for a caller that knows where the written lines are needed. */
typedef enum strided_caching {
    STRIDED_BY_SIZE,    /* in the caches, if all of it fits */
    STRIDED_IN_CACHES,  /* the other end reads it next */
    STRIDED_PAST_CACHES /* part of more than the caches hold; call strided_fence afterwards */
} strided_caching;

void strided_pack_as(void *dense, const strided_view *source, uint64_t first, uint64_t count,
                     strided_caching caching);
void strided_unpack_as(const strided_view *destination, uint64_t first, uint64_t count,
                       const void *dense, strided_caching caching);

/* Above this size at once the caches do not help. */
#define STRIDED_STREAMING_BYTES ((uint64_t)1 << 20)

/* Decompose a range of elements into boxes, for copy engines that only handle boxes. */

/* Two per dimension, the end of a row and the start of one, around the whole rows between them. */
#define STRIDED_BOXES_MAX (2 * BANYAN_MAX_DIMS)

/* Split elements [first, first + count) of the view, in row-major order, into consecutive views.
 * `boxes` has space for STRIDED_BOXES_MAX. Returns their number. */
int strided_view_boxes(const strided_view *view, uint64_t first, uint64_t count,
                       strided_view *boxes);

#endif
