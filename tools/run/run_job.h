/* A plan to be run by forked ranks, checked and timed. */
#ifndef TOOLS_RUN_JOB_H
#define TOOLS_RUN_JOB_H

#include <banyan/banyan.h>

#include "cli/failure.h"
#include "run/run_data.h"

/* One size: its message, and rank 0's results for it. */
typedef struct run_size {
    uint64_t message_bytes; /* a rank's input */
    uint64_t bytes;         /* of the longest buffer */
    bool in_bounds;         /* of the messages that the plan is meant for */
    int iters;
    double seconds; /* of a run: the mean of these on the slowest rank, in the fastest round */
    uint64_t checked, wrong;
    int wrong_rank; /* the first with a wrong element, and that element */
    unsigned wrong_turn;
    run_wrong first;
} run_size;

typedef struct run_job {
    const char *path, *dtype_name, *trace_path;
    const banyan_plan *plan;
    banyan_plan_info info;
    run_data data;
    bool in_place, ordinary_memory, json;
    bool on_gpus; /* rank r runs on GPU r */
    int iters;    /* of a round; 0: as many as let all take a twentieth of a second */
    int rounds;   /* that are timed */
    double
        rounds_s; /* no more begin after this time, or when several were as fast as any; 0: all */
    bool bound;   /* each rank on its own processor, if there are enough */
    int workers;
    int shuffle;     /* seed of an order in which thread blocks run; 0: their own */
    run_size *sizes; /* in memory that the ranks share; ascending */
    size_t size_count;
    failure *failed;
} run_job;

/* Number of checked runs per size. */
#define RUN_TURNS 2

/* Run a rank's part; `job` is a run_job. Returns the rank's exit code. */
int run_rank(int rank, void *job);

/* Print, at rank 0, the head and each size when it is done; the process that started the ranks
 * prints how it ended. Nothing with --json. */
void run_report_head(const run_job *job);
void run_report_size(const run_job *job, const run_size *size);
void run_report_end(const run_job *job);

/* The JSON object, on stdout. */
banyan_status run_report_json(const run_job *job);

/* "rank 1: element 5 of the output is 3, not 4 (message of 4,096 bytes, first of 7 wrong ones)" */
#define RUN_WRONG_BYTES 512
const char *run_report_wrong(const run_job *job, const run_size *size, char text[RUN_WRONG_BYTES]);

#endif
