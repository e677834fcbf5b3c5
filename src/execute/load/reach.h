/* The accesses to a rank's buffers when a plan runs. */
#ifndef EXECUTE_LOAD_REACH_H
#define EXECUTE_LOAD_REACH_H

#include "plan/plan.h"

typedef struct reach {
    bool used;    /* by any rank */
    bool read;    /* by any rank */
    bool written; /* by any rank */
    bool peers;   /* other ranks read or write it */
} reach;

/* Return the accesses to every buffer of every rank, indexed by step_base; the caller frees them.
 * NULL, with the error set, if out of memory. */
reach *reach_find(const banyan_plan *plan);

#endif
