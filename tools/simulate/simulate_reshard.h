/* `banyan simulate` of a reshard. */
#ifndef TOOLS_SIMULATE_RESHARD_H
#define TOOLS_SIMULATE_RESHARD_H

#include "layout/job_spec.h"

typedef struct simulate_reshard_arguments {
    job_spec spec; /* where there is a model */
    bool is_case;
    const char *case_path, *topology_name, *trace_path;
    const char *service; /* NULL: both */
    uint64_t slot_bytes;
    bool optimal_rounds, json;
} simulate_reshard_arguments;

/* Return why the arguments contradict each other, or NULL. */
const char *simulate_reshard_problem(const simulate_reshard_arguments *given,
                                     const char *trace_path);
/* Returns the exit code. */
int simulate_reshard(simulate_reshard_arguments *given);

#endif
