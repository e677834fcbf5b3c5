/* Check a plan before it runs. */
#ifndef TOOLS_RUN_CHECK_H
#define TOOLS_RUN_CHECK_H

#include <banyan/plan.h>

/* Return false, after printing the findings, when the plan is not sound or cannot be checked. */
bool run_check(const char *who, const banyan_plan *plan, const char *path);

#endif
