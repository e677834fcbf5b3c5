#include "launch/under_mpi.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int under_mpi_rank(void)
{
    const char *rank = getenv("PMIX_RANK");
    return rank && getenv("PMIX_NAMESPACE") ? atoi(rank) : -1;
}

/* Open MPI refuses more ranks than cores, and root, unless its own variables allow it. Set these,
 * so that the command line fits every mpirun. Variables that the user has set stay. */
static void allow_what_forks_are_allowed(void)
{
    setenv("OMPI_MCA_rmaps_base_oversubscribe", "1", 0);
    setenv("OMPI_MCA_hwloc_base_binding_policy", "none", 0);
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 0);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 0);
}

int under_mpi_start(const char *who, int count, char **argv)
{
    char program[4096], ranks[16];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    int words = 0;
    while (argv[words])
        words++;
    const char **command = calloc((size_t)words + 5, sizeof *command);
    if (length < 0 || !command) {
        fprintf(stderr, "%s: out of memory\n", who);
        free((void *)command);
        return 1;
    }
    program[length] = '\0';
    snprintf(ranks, sizeof ranks, "%d", count);
    command[0] = "mpirun";
    command[1] = "-n";
    command[2] = ranks;
    command[3] = program;
    for (int i = 0; i < words; i++)
        command[4 + i] = argv[i];
    allow_what_forks_are_allowed();
    execvp(command[0], (char *const *)command);
    fprintf(stderr, "%s: --backend mpi starts its ranks with mpirun, which cannot be run: %s\n",
            who, strerror(errno));
    free((void *)command);
    return 127;
}
