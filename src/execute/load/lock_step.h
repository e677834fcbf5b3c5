/* Plans whose ranks may go through their operations in step. */
#ifndef EXECUTE_LOAD_LOCK_STEP_H
#define EXECUTE_LOAD_LOCK_STEP_H

#include "plan/plan.h"

/* Of a plan that is alike: would it come to its end if no thread block of any rank began an
 * operation before all of them had ended the one before? Every wait then comes behind the signals
 * that it takes. A plan that waits for packets, semaphores or barriers, or has loops, counts as one
 * that would not. NO_MEMORY. */
banyan_status plan_goes_in_step(const banyan_plan *plan, bool *in_step);

#endif
