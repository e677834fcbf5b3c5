/* The arguments of `banyan publish`, and the work of its ranks. */
#ifndef TOOLS_PUBLISH_JOB_H
#define TOOLS_PUBLISH_JOB_H

#include "launch/forked.h"

typedef struct publish_job {
    const char *in, *listen, *name, *secret;
    const char *cast;     /* type of all floating-point tensors; NULL: the checkpoint's */
    const char *compress; /* "auto", "off" or "always"; NULL: "auto" */
    bool watch, json;
    double settle_s;
    int kept;          /* versions; 0: the default */
    double patience_s; /* 0: the default */
    failure *failed;
} publish_job;

/* Publish until a signal comes. Returns the rank's exit code. */
int publish_rank(int rank, void *job);

#endif
