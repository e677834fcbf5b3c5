/* The helper that cleans up after a killed launcher: it kills the ranks, and processes that they
 * started. */
#ifndef TOOLS_GUARD_H
#define TOOLS_GUARD_H

#include "launch/helper.h"

/* Start the guard before opening descriptors that it must not inherit. False with errno. */
bool guard_start(helper *guard);
/* Watch a process group, or stop watching it. */
void guard_add(const helper *guard, pid_t group);
void guard_remove(const helper *guard, pid_t group);

#endif
