/* Commands whose ranks are forks of them, and why these failed: reported once, by the command. */
#ifndef TOOLS_FORKED_H
#define TOOLS_FORKED_H

#include <stdatomic.h>
#include <stdbool.h>

#include <banyan/core.h>

typedef struct failure_slot {
    atomic_bool taken;
    int rank;
    char message[4096];
} failure_slot;

/* In memory that the ranks share. A rank that only lost another is not the cause. */
typedef struct failure {
    failure_slot cause, consequence;
} failure;

/* Create it before the ranks are forked. NULL when memory ran out. */
failure *failure_create(void);
void failure_destroy(failure *shared);

/* Note the last error of a rank. The first note is kept. */
void failure_note(failure *shared, int rank, banyan_status status);

/* Return "rank 3: message", or NULL when nothing was noted. */
#define FAILURE_TEXT_BYTES 4224
const char *failure_message(const failure *shared, char text[FAILURE_TEXT_BYTES]);

/* Run `rank_main` in `ranks` forked processes, which note failures in `noted`; the cause is printed
 * on stderr, behind `who`. Returns the exit code. */
int forked_run(const char *who, int ranks, int (*rank_main)(int rank, void *context), void *context,
               failure *noted);

/* This process's place in a job that a launcher started: `banyan launch`, torchrun, mpirun or srun.
 */
typedef struct job_place {
    int rank, size; /* size 1: no launcher started it, or it is alone */
} job_place;

job_place job_place_find(void);

/* Run `rank_main` as this process's rank of its job, which must have `ranks` ranks; without a job,
 * as forked_run does. Returns the exit code. */
int job_run(const char *who, int ranks, int (*rank_main)(int rank, void *context), void *context,
            failure *noted);

/* Return the rank that mpirun or srun gave this process; -1 when they did not start it. */
int under_mpi_rank(void);

/* Run this program's command again, `argv` from its name on, as `count` ranks under mpirun. Does
 * not return on success; otherwise returns the exit code, after a message on stderr that begins
 * with `who`. */
int under_mpi_start(const char *who, int count, char **argv);

#endif
