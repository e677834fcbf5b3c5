/* The arguments of `banyan reshard`, and the work of its ranks. */
#ifndef TOOLS_RESHARD_JOB_H
#define TOOLS_RESHARD_JOB_H

#include <banyan/banyan.h>

#include "launch/forked.h"
#include "reshard/move.h"

typedef struct reshard_job {
    job_spec spec;
    move_options how;
    const char *svg_path;
    int iters;
    bool json;
    failure *failed;
} reshard_job;

/* Run a rank's part: plan, fill, move, verify; rank 0 reports. Returns the rank's exit code. */
int reshard_rank(int rank, void *job);

/* Totals of all ranks. */
typedef struct reshard_result {
    const reshard_job *job;
    const char *backend;
    uint64_t transfers, bytes, bytes_between; /* between: of them, to another rank */
    uint64_t elems;                           /* of the destination, each verified */
    double plan_s, best_s, median_s, memcpy_bytes_per_s;
    const double *iteration_s;
    const uint64_t *pair_bytes; /* [sender × ranks + receiver] */
} reshard_result;

/* Print the table, or the JSON object, and write the picture. SYSTEM when that cannot be done. */
banyan_status reshard_report(const reshard_result *result);

/* `banyan reshard --in DIR --out DIR`: models on disk. */

typedef struct files_job {
    job_spec spec; /* its model is the folder that is read */
    move_options how;
    const char *out;
    bool join; /* one Hugging Face folder, not one folder a rank */
    bool json;

    const char *in_folder; /* copy its small files; NULL: a single file is read */
    const char *saved;     /* where the ranks write theirs */
    banyan_checkpoint *checkpoint;
    failure *failed;
} files_job;

/* Returns the exit code; errors are printed on stderr, behind `who`. */
int files_run(files_job *job, const char *who);

#endif
