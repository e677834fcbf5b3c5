/* One case of a planner to be executed and compared. */
#ifndef TOOLS_VERIFY_JOB_H
#define TOOLS_VERIFY_JOB_H

#include <banyan/banyan.h>

#include "launch/forked.h"

typedef struct verify_job {
    banyan_megatron_case *loaded;
    const char *backend; /* NULL: Banyan's choice */
    failure *failed;
    uint64_t *elems; /* compared, of every rank; in memory that the ranks share */
} verify_job;

/* Run a rank's part: plan, fill, execute, and compare the received data with the case's transfers.
 * Returns the rank's exit code. */
int verify_rank(int rank, void *job);

#endif
