/* The arguments of `banyan subscribe`, and the work of its ranks. */
#ifndef TOOLS_SUBSCRIBE_JOB_H
#define TOOLS_SUBSCRIBE_JOB_H

#include <banyan/banyan.h>

#include "launch/cleanup.h"
#include "launch/forked.h"

typedef struct subscribe_job {
    const char *at, *out, *to, *model, *rules, *name, *secret;
    int keep;     /* newest versions that stay; 0: all */
    int versions; /* to write before the end; 0: until a signal comes */
    uint64_t bytes_per_s;
    bool verify, json;
    double timeout_s;         /* the longest time without a new version; 0: none */
    banyan_spec spec;         /* if `to` is a spec */
    banyan_layout_file *file; /* if it is a layout file */
    work_folder work;         /* in `out`; it has what is not complete */
    failure *failed;
} subscribe_job;

/* Follow the publication. Returns the rank's exit code. */
int subscribe_rank(int rank, void *job);

#endif
