/* Files that tests read: the sources, and ../shared beside them. */
#ifndef TESTS_SUPPORT_SOURCE_H
#define TESTS_SUPPORT_SOURCE_H

#include <stdlib.h>

/* Where they were compiled; BANYAN_SOURCE for tests that were carried to another machine. */
static inline const char *source_dir(void)
{
    const char *carried = getenv("BANYAN_SOURCE");
    return carried && carried[0] != '\0' ? carried : BANYAN_SOURCE_DIR;
}

#endif
