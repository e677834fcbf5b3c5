/* A plan is proved before it is run. */
#ifndef TOOLS_RUN_CHECK_H
#define TOOLS_RUN_CHECK_H

#include <banyan/plan.h>

/* False, and what was found is told, when the plan is not sound or cannot be checked. */
bool run_check(const char *who, const banyan_plan *plan, const char *path);

#endif
