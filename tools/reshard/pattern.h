/* A value for every element of every tensor, from the tensor's name and the element's global index,
 * so that a receiver can check each element. */
#ifndef TOOLS_PATTERN_H
#define TOOLS_PATTERN_H

#include <banyan/layout.h>
#include <banyan/reshard.h>

/* Fill the piece, as it lies in `tensor`. */
void pattern_fill(const banyan_piece *piece, const DLTensor *tensor);

typedef struct pattern_result {
    uint64_t elems; /* looked at */
    uint64_t wrong;
    uint64_t first_wrong; /* global index of the first of them, in row-major order */
} pattern_result;

/* Compare the piece with what pattern_fill makes of it. */
pattern_result pattern_check(const banyan_piece *piece, const DLTensor *tensor);

/* Check a box of padding, whose every element must be `fill` (NULL: zeros); first_wrong counts in
 * the local tensor. */
pattern_result pattern_check_fill(const banyan_box *box, const void *fill, const DLTensor *tensor);

/* Compare the piece in `tensor` with the pattern's values as they were sent, changed by the
 * transfer's value map and cast to the tensor's type. Both types are F32 or BF16; UNSUPPORTED for
 * others. first_wrong counts elements of the piece. */
banyan_status cast_check(const banyan_piece *piece, const banyan_transfer *sent,
                         const DLTensor *tensor, pattern_result *result);

/* Read a BF16, which is a float's upper half, or an F32. */
float pattern_float_of(const void *element, size_t bytes);

/* Set NO_MEMORY. */
banyan_status pattern_no_memory(uint64_t bytes);

#endif
