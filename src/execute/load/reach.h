/* Who touches a rank's buffers, and how, when a plan runs. */
#ifndef EXECUTE_LOAD_REACH_H
#define EXECUTE_LOAD_REACH_H

#include "plan/plan.h"

typedef struct reach {
    bool used;    /* by anybody */
    bool read;    /* by anybody */
    bool written; /* by anybody */
    bool peers;   /* other ranks read or write it */
} reach;

/* Of every buffer of every rank, by step_base; to be freed. NULL, with the error set, when memory
 * ran out. */
reach *reach_find(const banyan_plan *plan);

#endif
