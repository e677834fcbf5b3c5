/* Commands whose ranks are forks of them. */
#ifndef TOOLS_FORKED_H
#define TOOLS_FORKED_H

#include "cli/failure.h"

/* Run `rank_main` in `ranks` forked processes, which note failures in `noted`; the cause is printed
 * on stderr, behind `who`. Returns the exit code. */
int forked_run(const char *who, int ranks, int (*rank_main)(int rank, void *context), void *context,
               failure *noted);

#endif
