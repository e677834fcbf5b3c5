/* Plans whose ranks may run their operations in lock-step. */
#ifndef EXECUTE_LOAD_LOCK_STEP_H
#define EXECUTE_LOAD_LOCK_STEP_H

#include "plan/plan.h"

/* For an SPMD plan: determine whether it completes if no thread block of any rank begins an
 * operation before all have ended the previous one. Every wait then follows the signals that it
 * takes. The result is false for plans with waits for packets, semaphores or barriers, and for
 * plans with loops. NO_MEMORY. */
banyan_status plan_runs_in_lock_step(const banyan_plan *plan, bool *in_step);

#endif
