/* Files that tests read: the sources, and ../shared beside them. */
#ifndef TESTS_SUPPORT_SOURCE_H
#define TESTS_SUPPORT_SOURCE_H

#include <stdlib.h>
#include <unistd.h>

/* Where they were compiled; BANYAN_SOURCE, or "source" of the working folder, for tests that were
 * carried to another machine. */
static inline const char *source_dir(void)
{
    const char *carried = getenv("BANYAN_SOURCE");
    if (carried && carried[0] != '\0')
        return carried;
    return access(BANYAN_SOURCE_DIR, R_OK) == 0 ? BANYAN_SOURCE_DIR : "source";
}

#endif
