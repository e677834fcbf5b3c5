/* The launcher for host memory, for a caller that knows how much a run moves. */
#ifndef COPY_PIPELINE_HOST_H
#define COPY_PIPELINE_HOST_H

#include <banyan/pipeline.h>

/* Return the launcher. It unpacks past the caches while `*past_caches` is set; the caller may
 * change that between executions. */
banyan_pipeline_launcher pipeline_host_launcher(const bool *past_caches);

#endif
