/* Starting ranks under mpirun, which ranks that use MPI need. */
#ifndef TOOLS_UNDER_MPI_H
#define TOOLS_UNDER_MPI_H

/* Return the rank that mpirun or srun gave this process; -1 when they did not start it. */
int under_mpi_rank(void);

/* Run this program's command again, `argv` from its name on, as `count` ranks under mpirun. Does
 * not return on success; otherwise returns the exit code, after a message on stderr that begins
 * with `who`. */
int under_mpi_start(const char *who, int count, char **argv);

#endif
