/* Files that tests read: the sources, and ../shared beside them. */
#ifndef TESTS_SUPPORT_SOURCE_H
#define TESTS_SUPPORT_SOURCE_H

#include <stdlib.h>
#include <unistd.h>

/* The folder in which the tests were compiled; BANYAN_SOURCE, or "source" in the working folder,
 * for tests that were copied to another machine. */
static inline const char *source_dir(void)
{
    const char *carried = getenv("BANYAN_SOURCE");
    if (carried && carried[0] != '\0')
        return carried;
    return access(BANYAN_SOURCE_DIR, R_OK) == 0 ? BANYAN_SOURCE_DIR : "source";
}

#endif
