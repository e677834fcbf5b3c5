/* Warnings: correct, but probably unintended. */
#ifndef CHECK_WARNINGS_WARNINGS_H
#define CHECK_WARNINGS_WARNINGS_H

#include "check/replay/replay.h"

/* Warn about data that was sent to another rank and is unread after all runs, and about signals
 * that are left over. */
banyan_status warn_of_replay(replay *all);

/* Warn about scratch that no operation uses. */
banyan_status warn_of_unused(const banyan_plan *plan, findings *found);

/* Warn about links that carry much more than another, for a message that clips no chunk. */
banyan_status warn_of_uneven(const banyan_plan *plan, uint64_t message_bytes, findings *all);

#endif
