/* A disturbed job: its ranks work until a fault hits one of them. */
#ifndef TESTS_SOAK_JOB_H
#define TESTS_SOAK_JOB_H

#include "support/test.h"

enum { JOB_MAX_RANKS = 8 };

typedef struct job {
    banyan_world *world;
    random_state random; /* of the job: all ranks draw equal values */
    const char *folder;  /* the job's own, initially empty */
    const _Atomic int *stop;
    int rounds;
} job;

/* Begin another round: *more is false if the job is to end. Collective. */
banyan_status job_next(job *of, bool *more);

/* Each opens its objects, works round by round, checks every byte of the results, and closes its
 * objects, after a failure too. Returns the first failure of a call. Wrong bytes end the process
 * (CHECK). Collective. */
typedef banyan_status (*job_fn)(job *of);
banyan_status job_collectives(job *of);
banyan_status job_plans(job *of);
banyan_status job_mixed(job *of);
banyan_status job_reshard(job *of);
banyan_status job_save(job *of);
banyan_status job_worlds(job *of);
banyan_status job_memory(job *of);

#endif
