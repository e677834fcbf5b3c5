/* Warnings: correct, but probably unintended. */
#ifndef CHECK_WARNINGS_WARNINGS_H
#define CHECK_WARNINGS_WARNINGS_H

#include "check/classes.h"
#include "check/replay/replay.h"

/* Warn about data that was sent to another rank and is unread after all runs, and about signals
 * that are left over. */
banyan_status warn_of_replay(replay *all);

/* Warn about scratch that no operation uses. */
banyan_status warn_of_unused(const banyan_plan *plan, findings *found);

/* Warn about links that carry much more than another, for a message that clips no chunk. */
banyan_status warn_of_uneven(const banyan_plan *plan, uint64_t message_bytes, findings *all);

#define IDLE_NOT_SOUND UINT64_MAX

/* Check a plan that is sound in all these classes, which took `steps` to check. Remove each nop,
 * flush and barrier, and each signal or release with its wait or acquire, one at a time. Test
 * whether the plan is still sound without it, for as many as fit a small budget of work. For an
 * unsound plan, report only what needs no replay. */
banyan_status warn_of_idle(const banyan_plan *plan, const size_classes *classes, uint32_t runs,
                           uint64_t steps, findings *all);

#endif
