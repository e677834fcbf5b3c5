/* The modes that are one collective of a library, or two. */
#ifndef MIXED_THROUGH_COLLECTIVES_H
#define MIXED_THROUGH_COLLECTIVES_H

#include "mixed/mixed.h"

/* The mode is valid and no fused one. Communicators and memory that it needs are opened when they
 * are first needed: collective, as all of it. */
banyan_status through_collectives(banyan_mixed *mixed, const mixed_call *asked, void *stream);

/* Open NCCL's communicators of all groups that the grid's modes need. Collective. */
banyan_status collectives_open_nccl(banyan_mixed *mixed);

#endif
