/* Checksums of tensors. */
#ifndef RESHARD_RUN_CHECKSUM_H
#define RESHARD_RUN_CHECKSUM_H

#include "copy/strided/strided.h"

/* XXH3, 64 bits, of the elements in row-major order, wherever they lie. NO_MEMORY only. */
banyan_status checksum_view(const strided_view *view, uint64_t *sum);

#endif
