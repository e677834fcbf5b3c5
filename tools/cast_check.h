/* Pieces that arrive in another type than they were sent in. */
#ifndef TOOLS_CAST_CHECK_H
#define TOOLS_CAST_CHECK_H

#include "pattern.h"

/* Compare the piece in `tensor` with the pattern's values of type `sent`, cast to the tensor's.
 * Both are F32 or BF16; UNSUPPORTED for others. first_wrong counts elements of the piece. */
banyan_status cast_check(const banyan_piece *piece, DLDataType sent, const DLTensor *tensor,
                         pattern_result *result);

#endif
