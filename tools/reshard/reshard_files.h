/* `banyan reshard --in DIR --out DIR`: models on disk. */
#ifndef TOOLS_RESHARD_FILES_H
#define TOOLS_RESHARD_FILES_H

#include "cli/failure.h"
#include "reshard/move.h"

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
