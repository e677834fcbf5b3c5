/* Ranks that speak MPI must be started by it. */
#ifndef TOOLS_UNDER_MPI_H
#define TOOLS_UNDER_MPI_H

/* The rank that mpirun or srun gave this process; -1 when they did not start it. */
int under_mpi_rank(void);

/* Run this program's command again, `argv` from its name on, as `count` ranks under mpirun. Does
 * not return when that works; else the exit code, after a sentence on stderr that begins with
 * `who`. */
int under_mpi_start(const char *who, int count, char **argv);

#endif
