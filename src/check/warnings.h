/* What is not wrong, but probably not meant. */
#ifndef CHECK_WARNINGS_H
#define CHECK_WARNINGS_H

#include "check/replay.h"

/* What was sent to another rank and, after all runs, read by nobody; signals that are left over. */
banyan_status warn_of_replay(replay *all);

/* What can be seen without playing the plan. */
banyan_status warn_of_plan(const banyan_plan *plan, uint64_t message_bytes, findings *all);

#endif
