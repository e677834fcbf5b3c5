/* Checksums of tensors. */
#ifndef RESHARD_RUN_CHECKSUM_H
#define RESHARD_RUN_CHECKSUM_H

#include "copy/strided/strided.h"

/* Compute the 64-bit XXH3 of the elements in row-major order, wherever they lie. NO_MEMORY is the
 * only error. */
banyan_status checksum_view(const strided_view *view, uint64_t *sum);

#endif
