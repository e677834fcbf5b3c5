/* banyan check --reshard: proving cases of planners. */
#ifndef TOOLS_CHECK_RESHARD_H
#define TOOLS_CHECK_RESHARD_H

#include <stdbool.h>

/* Print a report for each of the files; returns the exit code of the worst. */
int check_reshard_cases(char *const *paths, int count, bool json);

#endif
