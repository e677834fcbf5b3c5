/* The modes that are one collective of a library, or two. */
#ifndef MIXED_THROUGH_COLLECTIVES_H
#define MIXED_THROUGH_COLLECTIVES_H

#include "mixed/mixed.h"

/* The mode is valid and no fused one. Communicators and memory that it needs are opened when they
 * are first needed: collective, as all of it. */
banyan_status through_collectives(banyan_mixed *mixed, const mixed_call *asked, void *stream);

/* How the runs of communicators and of NCCL's went that have ended. Local; does not wait. */
banyan_status collectives_status(const banyan_mixed *mixed);

/* Start NCCL among the groups of one of its modes that is valid, if it has not been. When it fails
 * all are told so (SYSTEM, with NCCL's words), and from then on none of its modes is valid; unless
 * it is the world that has ended. Collective. */
banyan_status collectives_start_nccl(banyan_mixed *mixed, banyan_mixed_mode mode);

#endif
