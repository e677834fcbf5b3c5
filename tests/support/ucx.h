/* Tests of the module ucx. */
#ifndef TESTS_SUPPORT_UCX_H
#define TESTS_SUPPORT_UCX_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Let the world choose the module of this build. False, with a line that says so, if the build has
 * none: exit with 77. */
static inline bool ucx_is_there(void)
{
    setenv("BANYAN_MODULE_PATH", BANYAN_BINARY_DIR "/lib", 1);
    unsetenv("BANYAN_TRANSPORT");
    if (access(BANYAN_BINARY_DIR "/lib/libbanyan_ucx.so", R_OK) == 0)
        return true;
    printf("skipped: this build has no UCX module\n");
    return false;
}

#endif
