/* A collective call on ranks that are processes, one of which has one call of the C library fail:
 * every rank must return at once, and say why. */
#ifndef TESTS_FAULTS_JOB_H
#define TESTS_FAULTS_JOB_H

#include "faults/inject.h"
#include "support/test.h"

/* One rank's things. A case's functions use what they need. */
typedef struct job_rank {
    int rank, count;
    const banyan_unique_id *id;
    uint64_t timeout_ns; /* of worlds */
    const char *folder;  /* for files; empty when the job begins */
    banyan_world *world;
    void *things; /* the case's */
} job_rank;

/* Functions are called by all ranks together. */
typedef struct job_case {
    const char *name;
    /* What comes before the call; NULL: nothing. */
    void (*prepare)(job_rank *r);
    banyan_status (*call)(job_rank *r);
    /* Check what a good call has made, and unmake it, so that it can be made again; NULL: nothing.
     */
    void (*undo)(job_rank *r);
    /* After the last call, good or not, before the world is closed: it may have ended. */
    void (*finish)(job_rank *r);
    int ranks;        /* 0: 2 or 4 */
    bool two_nodes;   /* the halves of the ranks meet over TCP */
    bool opens_world; /* there is none before the call, which is made again after a failure alone */
    bool closes_world;
    bool only_once;           /* the call cannot be made again */
    bool keeps_threads;       /* a driver's stay */
    size_t keeps_descriptors; /* so many of a foreign library may stay */
    bool is_foreign; /* a library takes part that waits for its own ranks: descriptors must do */
    bool may_differ; /* ranks are not told of a failure at the end of another's part */
    /* A call that fails and leaves the world usable, or is undone, has left none in the folder. */
    bool leaves_no_files;
} job_case;

/* The main function of a program of faults: run the cases, as many random faults as fit the time
 * (BANYAN_FAULTS_SECONDS, else `seconds`), or with BANYAN_FAULTS=all each. BANYAN_FAULTS_CASE,
 * _KIND, _N and _ERRNO choose among them. Returns the exit code; sanitizers skip the program. */
int job_main(const job_case *cases, size_t count, double seconds);

#endif
