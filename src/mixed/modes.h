/* What modes are, and which a context can run. */
#ifndef MIXED_MODES_H
#define MIXED_MODES_H

#include "mixed/mixed.h"

#define MODE_REASON_BYTES 640

/* One launch of ours, by the engine. */
bool mode_is_fused(banyan_mixed_mode mode);
bool mode_is_multicast(banyan_mixed_mode mode);
/* Through NCCL; as two collectives. */
bool mode_is_nccl(banyan_mixed_mode mode);
bool mode_is_separate(banyan_mixed_mode mode);

/* One of the two mixed ones, which are two collectives in one? */
bool op_is_pair(banyan_mixed_op op);

/* INVALID for an operation that is none or that the grid does not allow. */
banyan_status op_check(const banyan_mixed *mixed, banyan_mixed_op op);

/* Can the context run it so, now? `reason` says why not, as part of a sentence. */
bool mode_is_valid(const banyan_mixed *mixed, banyan_mixed_op op, banyan_mixed_mode mode,
                   char *reason, size_t reason_bytes);
/* INVALID says why not. */
banyan_status mode_check(const banyan_mixed *mixed, banyan_mixed_op op, banyan_mixed_mode mode);

/* What serves so many bytes of b rows when nothing has been measured; docs/mixed.md has it. Fewest
 * waits when nothing is valid. */
banyan_mixed_mode mode_default(const banyan_mixed *mixed, banyan_mixed_op op, uint64_t bytes);

#endif
