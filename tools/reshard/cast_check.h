/* Check pieces that arrive in another type, or with other values, than they were sent in. */
#ifndef TOOLS_CAST_CHECK_H
#define TOOLS_CAST_CHECK_H

#include <banyan/reshard.h>

#include "reshard/pattern.h"

/* Compare the piece in `tensor` with the pattern's values as they were sent, changed by the
 * transfer's value map and cast to the tensor's type. Both types are F32 or BF16; UNSUPPORTED for
 * others. first_wrong counts elements of the piece. */
banyan_status cast_check(const banyan_piece *piece, const banyan_transfer *sent,
                         const DLTensor *tensor, pattern_result *result);

#endif
