/* Tests of code that is compiled for several processors: run for each level that this processor
 * supports. */
#ifndef TESTS_SUPPORT_LEVELS_H
#define TESTS_SUPPORT_LEVELS_H

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/threads/sanitizer.h"

/* Run each level in a process, since it is fixed at its first use; returns the number of failures.
 * The thread sanitizer, which is slow, runs one level. */
static inline int levels_run(int (*run)(void))
{
#ifdef SANITIZER_THREAD
    static const char *const levels[] = {"avx512"};
#else
    static const char *const levels[] = {"baseline", "avx2", "avx512"};
#endif
    int failed = 0, status = 0;
    for (size_t i = 0; i < sizeof levels / sizeof levels[0]; i++) {
        printf("BANYAN_CPU=%s\n", levels[i]);
        fflush(NULL);
        pid_t child = fork();
        if (child == 0) {
            setenv("BANYAN_CPU", levels[i], 1);
            exit(run() != 0);
        }
        failed += child < 0 || waitpid(child, &status, 0) != child || status != 0;
    }
    return failed;
}

#endif
