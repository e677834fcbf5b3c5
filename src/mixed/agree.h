/* Agreement on the options of ranks that open a context together. */
#ifndef MIXED_AGREE_H
#define MIXED_AGREE_H

#include <banyan/mixed.h>

/* INVALID for options out of range. Local. */
banyan_status options_check(const banyan_mixed_options *options, int rank);

/* MISMATCH names the first option in which a rank differs from rank 0, and both values. Ranks may
 * have different device numbers. Collective. */
banyan_status options_agree(banyan_world *world, const banyan_mixed_options *options);

#endif
