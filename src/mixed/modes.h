/* What modes are, and which a context can run. */
#ifndef MIXED_MODES_H
#define MIXED_MODES_H

#include "mixed/mixed.h"

/* One launch of ours, by the engine. */
bool mode_is_fused(banyan_mixed_mode mode);

/* Can the context run it so, now? `reason` says why not, as part of a sentence. */
bool mode_is_valid(const banyan_mixed *mixed, banyan_mixed_op op, banyan_mixed_mode mode,
                   char *reason, size_t reason_bytes);

#endif
