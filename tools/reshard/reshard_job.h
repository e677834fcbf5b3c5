/* The arguments of `banyan reshard`, and the work of its ranks. */
#ifndef TOOLS_RESHARD_JOB_H
#define TOOLS_RESHARD_JOB_H

#include "reshard/move.h"

typedef struct reshard_job {
    job_spec spec; /* with --in, its model is the folder that is read */
    move_options how;
    bool json;
    failure *failed;

    /* With --model. */
    const char *svg_path;
    int iters;

    /* With --in. */
    const char *out;
    bool join;             /* one Hugging Face folder, not one folder a rank */
    const char *in_folder; /* copy its small files; NULL: a single file is read */
    const char *saved;     /* where the ranks write theirs */
    banyan_checkpoint *checkpoint;
} reshard_job;

/* Run a rank's part: plan, fill, move, verify; rank 0 reports. Returns the rank's exit code. */
int reshard_rank(int rank, void *job);

/* `banyan reshard --in DIR --out DIR`: move models on disk. Returns the exit code; errors are
 * printed on stderr, behind `who`. */
int reshard_files(reshard_job *job, const char *who);

#endif
