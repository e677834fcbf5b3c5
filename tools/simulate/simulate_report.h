/* The output of `banyan simulate`. */
#ifndef TOOLS_SIMULATE_REPORT_H
#define TOOLS_SIMULATE_REPORT_H

#include <banyan/simulate.h>
#include <jansson.h>

#include "cli/message.h"
#include "layout/job_spec.h"

typedef struct simulate_report {
    const banyan_plan *plan;
    const banyan_topology *topology;
    bool json;
    json_t *sizes;           /* with `json` */
    banyan_simulation *last; /* with its steps; the report's own */
} simulate_report;

void simulate_report_begin(simulate_report *report);
/* `instances` 0: the plan is from a file, which does not store the number. */
void simulate_report_size(simulate_report *report, const message *size,
                          const banyan_simulation *simulation, int instances);
/* Print links and path of the last size. */
void simulate_report_end(const simulate_report *report);
void simulate_report_free(simulate_report *report);

/* Print tables, and their JSON, independent of the simulated object. */
void simulate_report_links(const banyan_simulation *of);
void simulate_report_path(const banyan_simulation *of);
json_t *simulate_report_links_json(const banyan_simulation *of);
json_t *simulate_report_path_json(const banyan_simulation *of);

typedef struct simulate_reshard_arguments {
    job_spec spec; /* where there is a model */
    bool is_case;
    const char *case_path, *topology_name, *trace_path;
    const char *service; /* NULL: both */
    uint64_t slot_bytes;
    bool optimal_rounds, each_rank_fetches, json;
} simulate_reshard_arguments;

/* Return why the arguments contradict each other, or NULL. */
const char *simulate_reshard_problem(const simulate_reshard_arguments *given,
                                     const char *trace_path);
/* Returns the exit code. */
int simulate_reshard(simulate_reshard_arguments *given);

#endif
