/* Progress of a run, for the function of banyan_copy_options. */
#ifndef COPY_SERVICE_PROGRESS_H
#define COPY_SERVICE_PROGRESS_H

#include <banyan/copy.h>

typedef struct copy_progress {
    void (*report)(void *context, uint64_t done, uint64_t total); /* NULL: nobody asks */
    void *context;
    uint64_t done, total; /* bytes of this run */
    uint64_t next_ns;     /* time of the next report */
    bool is_reported;
} copy_progress;

/* Set the function, when a backend is opened. */
void copy_progress_open(copy_progress *progress, const banyan_copy_options *options);

void copy_progress_begin(copy_progress *progress, uint64_t total);
void copy_progress_add(copy_progress *progress, uint64_t bytes);
/* Report the end of a run that has not failed, if anything of it was reported. */
void copy_progress_end(copy_progress *progress);

#endif
