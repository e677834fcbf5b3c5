/* Start the ranks of a job on this machine, supervise them, and end them together. */
#ifndef TOOLS_LAUNCH_H
#define TOOLS_LAUNCH_H

#include <stdbool.h>

#define LAUNCH_MAX_RANKS 4096
#define LAUNCH_GRACE_SECONDS 5.0
#define LAUNCH_SIGNALLED 128 /* exit codes above: a signal's number is added to it */

typedef struct launch_job {
    const char *who; /* begins messages: "banyan launch" */
    int count;
    char *const *program; /* argv of the program of every rank; NULL: `rank_main` runs in a fork */
    int (*rank_main)(int rank, void *context); /* returns the rank's exit code */
    void *context;
    bool ranks_explain; /* ranks print why they end with a code other than 0 */
    bool tag_output;    /* "[rank] " before every line */
    double timeout_s;   /* the job is ended after this time; 0: never */
    double grace_s;     /* between SIGTERM and SIGKILL; 0: LAUNCH_GRACE_SECONDS */
} launch_job;

/* Run the job to its end and return the exit code: 0 when every rank ended with 0. Otherwise it is
 * that of the first rank that failed, after a message on stderr: 128 + signal when a signal killed
 * it. The other ranks are ended: SIGTERM, then SIGKILL after the grace period. 124: the timeout
 * passed; 126 and 127: the program cannot be run, or found.
 *
 * Ranks find each other through BANYAN_RANK, BANYAN_WORLD_SIZE, BANYAN_LOCAL_RANK,
 * BANYAN_LOCAL_SIZE, BANYAN_JOB and BANYAN_SECRET in their environment. Signals that ask a program
 * to end are passed on to them; a second one ends them. Rank 0 has the launcher's stdin, the others
 * /dev/null. When the launcher dies, by whatever cause, so do they and what they started. */
int launch_run(const launch_job *job);

#endif
