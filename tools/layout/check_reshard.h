/* banyan check --reshard: cases of banyan reshard verify, their own transfers and Banyan's plan. */
#ifndef TOOLS_CHECK_RESHARD_H
#define TOOLS_CHECK_RESHARD_H

#include <stdbool.h>

/* Check a case and set `*text` to the report, to be freed. Returns the exit code; `*text` is NULL,
 * with the error set, if the case cannot be checked. */
int check_reshard_case(const char *path, bool json, char **text);

#endif
