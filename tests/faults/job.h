/* Make a collective call on ranks that are processes. In one of them, one call into the C library
 * fails. Every rank must return at once, with an error that has the cause. */
#ifndef TESTS_FAULTS_JOB_H
#define TESTS_FAULTS_JOB_H

#include "faults/inject.h"
#include "support/test.h"

/* A rank of the job, for the functions of a case. */
typedef struct job_rank {
    int rank, count;
    const banyan_unique_id *id;
    uint64_t timeout_ns; /* of worlds */
    const char *folder;  /* for files; empty when the job begins */
    banyan_world *world;
    void *things; /* of the case */
} job_rank;

/* All ranks call the functions together. */
typedef struct job_case {
    const char *name;
    /* Called once before `call`; may be NULL. */
    void (*prepare)(job_rank *r);
    banyan_status (*call)(job_rank *r);
    /* Check and undo the results of a call that succeeded, so that it can be made again; may be
     * NULL. */
    void (*undo)(job_rank *r);
    /* Called after the last call, whether it failed or not, before the world is closed. The world
     * may have ended. May be NULL. */
    void (*finish)(job_rank *r);
    int ranks;        /* 0: 2 or 4 */
    bool two_nodes;   /* each half of the ranks is a node; they connect over TCP */
    bool opens_world; /* there is no world before the call; the call is repeated only after a
                         failure */
    bool closes_world;
    bool only_once;           /* the call cannot be made again */
    bool keeps_threads;       /* threads of a driver remain after the call */
    size_t keeps_descriptors; /* a foreign library may keep this many open */
    const char *foreign;      /* message of a library that does not say why it fails; or NULL */
    bool may_differ; /* a rank that fails in the end of the call does not inform the others */
    /* The folder is empty after a call that is undone, or that fails and leaves the world usable.
     */
    bool leaves_no_files;
} job_case;

/* The main function of a program of faults. Runs the cases with random faults for a time
 * (BANYAN_FAULTS_SECONDS, else `seconds`), or with every fault (BANYAN_FAULTS=all).
 * BANYAN_FAULTS_CASE, _KIND, _N and _ERRNO select cases and faults. Returns the exit code; skipped
 * under sanitizers. */
int job_main(const job_case *cases, size_t count, double seconds);

#endif
