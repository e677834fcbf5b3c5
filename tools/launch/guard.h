/* The helper that ends what a killed launcher cannot: its ranks, and what those have started. */
#ifndef TOOLS_GUARD_H
#define TOOLS_GUARD_H

#include "launch/helper.h"

/* Call before there are descriptors that should not stay open. False with errno. */
bool guard_start(helper *guard);
/* Watch over a process group, or no longer. */
void guard_add(const helper *guard, pid_t group);
void guard_remove(const helper *guard, pid_t group);

#endif
