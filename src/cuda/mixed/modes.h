/* The fused modes that have a multicast variant, and those variants. */
#ifndef CUDA_MIXED_MODES_H
#define CUDA_MIXED_MODES_H

#include <banyan/mixed.h>

/* True if it needs setup->multicast. */
static inline bool mixed_is_multicast(banyan_mixed_mode mode)
{
    return mode >= BANYAN_MIXED_ONE_SHOT_MULTICAST && mode <= BANYAN_MIXED_TWO_SHOT_NODES_MULTICAST;
}

/* Return the mode with equal transfers without multicast. */
static inline banyan_mixed_mode mixed_unicast(banyan_mixed_mode mode)
{
    int apart = BANYAN_MIXED_ONE_SHOT_MULTICAST - BANYAN_MIXED_ONE_SHOT;
    return mixed_is_multicast(mode) ? (banyan_mixed_mode)((int)mode - apart) : mode;
}

#endif
