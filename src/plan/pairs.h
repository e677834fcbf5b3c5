/* Find paired memory and port channels quickly, after one pass over all channels. Use it for many
 * queries; use plan_channel_pair for a few. */
#ifndef PLAN_PAIRS_H
#define PLAN_PAIRS_H

#include "plan/plan.h"

/* The channels of a rank and type, by peer, then number. */
typedef struct plan_ends {
    uint32_t *by_peer;
    uint32_t *ordinal; /* each channel's index among those to its peer */
} plan_ends;

typedef struct plan_pairs {
    const banyan_plan *plan;
    plan_ends (*ends)[PLAN_CHANNEL_TYPES]; /* one per rank */
    arena memory;
} plan_pairs;

/* Build the index. Peers must be ranks of the plan. NO_MEMORY. */
banyan_status plan_pairs_make(const banyan_plan *plan, plan_pairs *pairs);
void plan_pairs_free(plan_pairs *pairs);

/* False when the peer has no channel that pairs with this one. */
bool plan_pairs_find(const plan_pairs *pairs, int rank, plan_channel_type type, uint32_t channel,
                     int *peer, uint32_t *peer_channel);

#endif
