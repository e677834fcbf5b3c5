/* Properties of modes, and the modes that a context can run. */
#ifndef MIXED_MODES_H
#define MIXED_MODES_H

#include "mixed/mixed.h"

#define MODE_REASON_BYTES 640

/* True for modes that the engine runs in one launch of our own kernels. */
bool mode_is_fused(banyan_mixed_mode mode);
/* True for modes through NCCL; for modes of two collectives. */
bool mode_is_nccl(banyan_mixed_mode mode);
bool mode_is_separate(banyan_mixed_mode mode);

/* True for the two mixed operations, each a pair of collectives. */
bool op_is_pair(banyan_mixed_op op);

/* INVALID for an unknown operation, or one that the grid does not allow. */
banyan_status op_check(const banyan_mixed *mixed, banyan_mixed_op op);

/* True if the context can run the mode now. `reason` explains a refusal, as part of a message. */
bool mode_is_valid(const banyan_mixed *mixed, banyan_mixed_op op, banyan_mixed_mode mode,
                   char *reason, size_t reason_bytes);
/* INVALID, with the reason. */
banyan_status mode_check(const banyan_mixed *mixed, banyan_mixed_op op, banyan_mixed_mode mode);

/* Return the mode for this many bytes of b rows without measurements, as docs/mixed.md describes.
 * Returns one_shot if no mode is valid. */
banyan_mixed_mode mode_default(const banyan_mixed *mixed, banyan_mixed_op op, uint64_t bytes);

#endif
