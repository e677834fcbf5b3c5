/* The copy backend "pipeline". */
#ifndef COPY_PIPELINE_BACKEND_H
#define COPY_PIPELINE_BACKEND_H

#include <banyan/copy.h>

extern const banyan_copy_backend copy_backend_pipeline;

/* Its open, over a transport that the caller has opened, which passes to the backend's state, on
 * failure too. Collective. */
banyan_status pipeline_open_over(banyan_world *world, banyan_transport *transport,
                                 const banyan_copy_options *options, void **state);

#endif
