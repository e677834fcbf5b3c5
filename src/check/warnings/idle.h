/* Find synchronization that orders nothing: the plan is sound without it. */
#ifndef CHECK_WARNINGS_IDLE_H
#define CHECK_WARNINGS_IDLE_H

#include "check/classes.h"
#include "check/findings.h"

#define IDLE_NOT_SOUND UINT64_MAX

/* Check a plan that is sound in all these classes, which took `steps` to check. Remove every nop,
 * flush, barrier, and signal or release with its wait or acquire, one after the other, and test
 * whether the plan is still sound; try as many as fit a small budget of work. For an unsound plan,
 * report only what needs no replay. */
banyan_status warn_of_idle(const banyan_plan *plan, const size_classes *classes, uint32_t runs,
                           uint64_t steps, findings *all);

#endif
