/* A process that outlives the launcher by a moment, to end what a killed one cannot. */
#ifndef TOOLS_GUARD_H
#define TOOLS_GUARD_H

#include <stdbool.h>
#include <sys/types.h>

typedef struct guard {
    pid_t pid;
    int pipe; /* its other end closes when the launcher dies */
} guard;

/* Call before there are descriptors that should not stay open. False with errno. */
bool guard_start(guard *started);
/* Watch over a process group, or no longer. */
void guard_add(const guard *over, pid_t group);
void guard_remove(const guard *over, pid_t group);
void guard_stop(guard *over);

#endif
