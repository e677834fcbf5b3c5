/* The launcher for host memory, by somebody who knows how much a run moves. */
#ifndef COPY_PIPELINE_HOST_H
#define COPY_PIPELINE_HOST_H

#include <banyan/pipeline.h>

/* Its unpacking writes past the caches while `*past_caches` is set, which the caller may change
 * between executions. */
banyan_pipeline_launcher pipeline_host_launcher(const bool *past_caches);

#endif
