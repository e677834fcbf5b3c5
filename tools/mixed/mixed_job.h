/* Mixed collectives to be run by forked ranks, checked and timed. */
#ifndef TOOLS_MIXED_JOB_H
#define TOOLS_MIXED_JOB_H

#include <banyan/banyan.h>

#include "launch/forked.h"

/* Powers of two from one row to more than any memory. */
#define MIXED_SIZES_MOST 40

/* An operation, number of rows and mode; in memory that the ranks share, written by rank 0. */
typedef struct mixed_cell {
    bool done;
    uint64_t ns;
    uint64_t checked, wrong; /* elements, of all ranks */
    int wrong_rank;          /* the first with a wrong element, and that element */
    uint64_t wrong_index;
    double wrong_expected, wrong_found;
} mixed_cell;

typedef struct mixed_size {
    uint64_t rows; /* b */
    bool is_tuned; /* modes are chosen by a table that has measurements */
    banyan_mixed_mode chosen[BANYAN_MIXED_OPS];
    mixed_cell cells[BANYAN_MIXED_OPS][BANYAN_MIXED_MODES];
} mixed_size;

typedef struct mixed_job {
    banyan_mixed_options options;
    int ranks;
    bool on_gpus, json;
    uint64_t rows[2], hidden;
    const char *op_name, *mode_name; /* NULL: all valid ones */
    const char *svg_path, *save_path;
    banyan_mixed_op op;
    banyan_mixed_mode mode;
    mixed_size *sizes;
    size_t size_count;
    failure *failed;
} mixed_job;

/* Return the bytes of b rows. */
uint64_t mixed_job_bytes(const mixed_job *job, const mixed_size *size);

/* True if modes were chosen by a table, not by default. */
bool mixed_job_is_tuned(const mixed_job *job);

/* A rank's part; `job` is a mixed_job. Returns the rank's exit code. */
int mixed_rank(int rank, void *job);

void mixed_report(const mixed_job *job);
/* The JSON object, on stdout. */
banyan_status mixed_report_json(const mixed_job *job);
/* Format a message about the first wrong element of all; NULL when there is none. */
#define MIXED_WRONG_BYTES 512
const char *mixed_report_wrong(const mixed_job *job, char text[MIXED_WRONG_BYTES]);

/* Draw time over size, a line per mode, both logarithmic, a panel per operation. False with errno.
 */
bool mixed_plot(const mixed_job *job);

#endif
