/* A plan to be run by forked ranks, checked and timed: its inputs, and the outputs that they must
 * give. */
#ifndef TOOLS_RUN_JOB_H
#define TOOLS_RUN_JOB_H

#include <banyan/banyan.h>

#include "launch/forked.h"

/* Every element is a value of its rank, its place and the turn. Reductions of the values are exact
 * in any order: integers have all values and wrap around, and floats are small whole numbers.
 * Elements that are only moved have any bits. */
typedef struct run_data {
    DLDataType dtype;
    size_t elem_bytes;
    banyan_reduce_op op;
    bool said;    /* the plan defines its outputs */
    bool bits;    /* nothing is reduced */
    int64_t most; /* of a float's size */
    /* This many ranks have values in a turn, the others zeros: as many as can be added exactly. */
    int ranks, active;
} run_data;

/* INVALID: sums of the plan cannot be exact in this type. */
banyan_status run_data_make(const banyan_plan *plan, DLDataType dtype, run_data *made);

void run_data_fill(const run_data *data, int rank, unsigned turn, void *input, uint64_t elems);

typedef struct run_wrong {
    uint64_t count;
    uint64_t first, expected, found; /* the first one's index, and the bits of both */
} run_wrong;

/* Compare the parts of an output that the plan defines; adds to `wrong` and to `*checked`. */
void run_data_check(const run_data *data, unsigned turn, const banyan_plan_result *parts,
                    size_t count, const void *output, run_wrong *wrong, uint64_t *checked);

/* Format an element: "-3", "0.5", "0x1f2e". */
#define RUN_DATA_TEXT_BYTES 48
const char *run_data_text(const run_data *data, uint64_t bits, char text[RUN_DATA_TEXT_BYTES]);

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
