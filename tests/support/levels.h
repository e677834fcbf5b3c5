/* Tests of code that is compiled for several processors, run for each that this one can be. */
#ifndef TESTS_SUPPORT_LEVELS_H
#define TESTS_SUPPORT_LEVELS_H

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/threads/sanitizer.h"

/* In a process each, since the level is fixed when it is first asked for; returns how many failed.
 * The thread sanitizer, which is slow, sees the same in all of them. */
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
