/* SPMD plans: every thread block does the same operations. */
#ifndef EXECUTE_LOAD_SPMD_H
#define EXECUTE_LOAD_SPMD_H

#include "plan/plan.h"

/* True if all ranks have equally many thread blocks, and all of these do the same operations in
 * the same order. Only operands' places and channels' peers may differ. Puts and signals through
 * port channels must use the channels in the same order, too. */
bool plan_is_spmd(const banyan_plan *plan);

/* For an SPMD plan: find the port channel through which the rank puts and signals at exactly the
 * operations where the peer does so through the other end of `channel`. False: there is none. */
bool plan_mirror(const banyan_plan *plan, int rank, uint32_t channel, uint32_t *mirror);

/* For an SPMD plan: determine whether it completes if no thread block of any rank begins an
 * operation before all have ended the previous one. Every wait then follows the signals that it
 * takes. The result is false for plans with waits for packets, semaphores or barriers, and for
 * plans with loops. NO_MEMORY. */
banyan_status plan_runs_in_lock_step(const banyan_plan *plan, bool *in_step);

#endif
