/* Tests of code that is compiled for several processors: run for each level that this processor
 * supports. */
#ifndef TESTS_SUPPORT_LEVELS_H
#define TESTS_SUPPORT_LEVELS_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/threads/cpu.h"
#include "core/threads/sanitizer.h"

/* Run each level in a process, since it is fixed at its first use; returns the number of failures.
 * Levels that this processor does not have are left out. The thread sanitizer, which is slow, runs
 * the highest one alone. */
static inline int levels_run(int (*run)(void))
{
    static const char *const levels[CPU_LEVELS] = {"baseline", "avx2", "avx512"};
    enum { NOT_HERE = 78 };
    int failed = 0, status = 0;
    for (int level = CPU_LEVELS - 1; level >= 0; level--) {
        pid_t child = fork();
        if (child == 0) {
            setenv("BANYAN_CPU", levels[level], 1);
            if ((int)cpu_level_get() != level)
                exit(NOT_HERE);
            printf("BANYAN_CPU=%s\n", levels[level]);
            exit(run() != 0);
        }
        bool ended = child > 0 && waitpid(child, &status, 0) == child;
        if (ended && WIFEXITED(status) && WEXITSTATUS(status) == NOT_HERE && level > 0)
            continue;
        failed += !ended || status != 0;
#ifdef SANITIZER_THREAD
        break;
#endif
    }
    return failed;
}

#endif
