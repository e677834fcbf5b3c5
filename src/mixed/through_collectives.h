/* The modes that use one collective of a library, or two. */
#ifndef MIXED_THROUGH_COLLECTIVES_H
#define MIXED_THROUGH_COLLECTIVES_H

#include "mixed/mixed.h"

/* Run a valid mode that is not fused. Its communicators and memory are opened at their first use.
 * Collective. */
banyan_status through_collectives(banyan_mixed *mixed, const mixed_call *asked, void *stream);

/* Report the result of the ended runs of communicators and of NCCL. Local; does not wait. */
banyan_status collectives_status(const banyan_mixed *mixed);

/* Start NCCL in the groups of a valid NCCL mode, unless it runs already. If that fails, all ranks
 * receive SYSTEM with NCCL's error text, and no NCCL mode is valid from then on; if the world has
 * ended, they receive its error instead. Collective. */
banyan_status collectives_start_nccl(banyan_mixed *mixed, banyan_mixed_mode mode);

#endif
