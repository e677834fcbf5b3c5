/* Plans of which every thread block does the same. */
#ifndef EXECUTE_LOAD_SPMD_H
#define EXECUTE_LOAD_SPMD_H

#include "plan/plan.h"

/* Have all ranks as many thread blocks, and all of these the same operations in the same order, but
 * for where their operands lie and whom their channels lead to? What they put, and signal, through
 * port channels they do in the same order of channels, too. */
bool plan_is_alike(const banyan_plan *plan);

/* Of such a plan: the port channel through which the rank puts and signals at the very places where
 * the peer does so through the other end of `channel`. False: there is none. */
bool plan_twin(const banyan_plan *plan, int rank, uint32_t channel, uint32_t *twin);

#endif
