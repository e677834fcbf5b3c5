/* What is not wrong, but probably not meant. */
#ifndef CHECK_WARNINGS_WARNINGS_H
#define CHECK_WARNINGS_WARNINGS_H

#include "check/replay/replay.h"

/* What was sent to another rank and, after all runs, read by nobody; signals that are left over. */
banyan_status warn_of_replay(replay *all);

/* Scratch that no operation uses. */
banyan_status warn_of_unused(const banyan_plan *plan, findings *found);

/* Links of which one carries much more than another, of a message that clips no chunk. */
banyan_status warn_of_uneven(const banyan_plan *plan, uint64_t message_bytes, findings *all);

#endif
