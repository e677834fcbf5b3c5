/* Synchronisation that orders nothing: without it the plan is as sound. */
#ifndef CHECK_WARNINGS_IDLE_H
#define CHECK_WARNINGS_IDLE_H

#include "check/classes.h"
#include "check/findings.h"

#define IDLE_NOT_SOUND UINT64_MAX

/* Of a plan that is sound in all these classes, to know which took `steps`: take out every nop,
 * flush, barrier, and signal or release with its wait or acquire, one after the other, and look
 * whether it still is; as many as can be tried with little work. Of one that is not sound, only
 * what can be seen at once. */
banyan_status warn_of_idle(const banyan_plan *plan, const size_classes *classes, uint32_t runs,
                           uint64_t steps, findings *all);

#endif
